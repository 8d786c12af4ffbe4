package storetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var scanTests = []testCase{
	{"scan/all there are", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		var want []*keystore.Job
		for i := range 15 {
			create := func(kind string) *keystore.Job { return mustCreate(t, s, starting(s, fmt.Sprint(i, kind))) }
			want = append(want, create("running"))
			j := create("unknown")
			want = append(want, mustSwap(t, s, j.WriteID, unknown(s, j)))
			j = create("open")
			want = append(want, mustSwap(t, s, j.WriteID, open(s, j)))
			j = create("completed")
			want = append(want, mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid"))))
		}
		mustIndex(t, s, keystore.IndexEntryOf(want[0])) // is not looked at
		for _, limit := range []int{1, 7, len(want), 1000, 100_000} {
			mustScan(t, other, limit, want)
		}
	}},
	{"scan/of nothing", func(t *testing.T, b Backend) {
		mustScan(t, b.Open(t), 10, nil)
	}},
	{"scan/thousands", func(t *testing.T, b Backend) {
		s := b.Open(t)
		want := createMany(t, s, many)
		for _, limit := range []int{100, 1000, 10 * many} {
			mustScan(t, s, limit, want)
		}
	}},
	{"scan/while others come and go", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		const n = 40
		var stay, drop, renew []*keystore.Job
		for i := range n {
			stay = append(stay, mustCreate(t, s, starting(s, fmt.Sprint(i, "stays"))))
			j := mustCreate(t, s, starting(s, fmt.Sprint(i, "is dropped")))
			drop = append(drop, mustSwap(t, s, j.WriteID, completed(s, j, nil)))
			renew = append(renew, mustCreate(t, s, starting(s, fmt.Sprint(i, "is renewed"))))
			j = mustCreate(t, s, startingFor(s, fmt.Sprint(i, "expires"), brief, time.Minute))
			mustSwap(t, s, j.WriteID, completed(s, j, nil))
		}
		i := 0
		between := func() {
			if i == 3 {
				b.Advance(brief + margin)
			}
			if i < n {
				mustCreate(t, other, starting(other, fmt.Sprint(i, "comes")))
				mustSwap(t, other, drop[i].WriteID, dropped(other, drop[i]))
				renew[i] = mustSwap(t, other, renew[i].WriteID, renewed(renew[i]))
			}
			i++
		}
		seen := scanAll(t, s, 5, between)
		for _, j := range stay {
			mustEqual(t, seen[j.Name], j)
		}
		for _, j := range renew { // there all the time, whichever of its records
			if seen[j.Name] == nil {
				t.Fatalf("%s was not found", j.KeySent)
			}
		}
		for i < n {
			between()
		}
		seen = scanAll(t, s, 5, func() {})
		if len(seen) != 3*n {
			t.Errorf("in the end %d jobs are found, want %d", len(seen), 3*n)
		}
		for _, j := range append(stay, renew...) {
			mustEqual(t, seen[j.Name], j)
		}
	}},
	{"scan/expired ones are none", func(t *testing.T, b Backend) {
		s := b.Open(t)
		for i := range 30 {
			j := mustCreate(t, s, startingFor(s, fmt.Sprint(i), brief, time.Minute))
			mustSwap(t, s, j.WriteID, completed(s, j, nil))
		}
		last := mustCreate(t, s, starting(s, "stays"))
		b.Advance(brief + margin)
		mustScan(t, s, 4, []*keystore.Job{last})
	}},
	{"scan/what can't be read hides no other", func(t *testing.T, b Backend) {
		s := b.Open(t)
		var want []*keystore.Job
		for what, garble := range garbled {
			want = append(want, mustCreate(t, s, starting(s, "good, beside "+what)))
			j := starting(s, what)
			b.Garble(t, j.Name, garble(s, j))
		}
		for _, limit := range []int{1, 5, 100} {
			mustScan(t, s, limit, want)
		}
	}},
	{"scan/bodies", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		want := make(map[keystore.Name]*keystore.Job)
		for _, size := range []int{0, 1, 32 << 10, 32<<10 + 1, 1 << 20, 9 << 20} {
			j := mustCreate(t, s, starting(s, fmt.Sprintf("%d bytes", size)))
			want[j.Name] = mustSwap(t, s, j.WriteID, completed(s, j, randomBytes(size)))
		}
		found := scanAll(t, other, 100, func() {})
		if len(found) != len(want) {
			t.Fatalf("got %d jobs, want %d", len(found), len(want))
		}
		for name, j := range found {
			body := want[name].Result.Body
			whole := *j
			if j.Result.Apart != nil {
				if j.Result.Body != nil {
					t.Fatalf("%s: its body is kept apart, and here", j.KeySent)
				}
				result := *j.Result
				result.Body = body
				whole.Result = &result
			}
			mustHaveBody(t, j.KeySent, &whole, nil, want[name], body)

			// Written back as it was seen, it keeps its body.
			noted := *j
			noted.WriteID = keystore.NewWriteID()
			mustSwap(t, other, j.WriteID, &noted)
			got, err := s.Get(contextOf(t), name)
			if err != nil || got == nil || got.Result.NotKept || !bytes.Equal(got.Result.Body, body) {
				t.Fatalf("%s: written back, its body is not what it was; error %v", j.KeySent, err)
			}
		}
	}},
}

// scanAll scans page by page up to the end, and does something between pages. Of
// a job that was found twice it returns the record found last.
func scanAll(t *testing.T, s keystore.Store, limit int, between func()) map[keystore.Name]*keystore.Job {
	t.Helper()
	seen := make(map[keystore.Name]*keystore.Job)
	cursor := ""
	for range 100_000 {
		page, next, err := s.Scan(contextOf(t), cursor, limit)
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		for _, j := range page {
			seen[j.Name] = j
		}
		if next == "" {
			return seen
		}
		cursor = next
		between()
	}
	t.Fatal("scan: it comes to no end")
	return nil
}

// mustScan checks that a scan in pages of this size finds these jobs and no others.
func mustScan(t *testing.T, s keystore.Store, limit int, want []*keystore.Job) {
	t.Helper()
	seen := scanAll(t, s, limit, func() {})
	for _, j := range want {
		if seen[j.Name] == nil {
			t.Fatalf("in pages of %d: %s was not found", limit, j.KeySent)
		}
		mustEqual(t, seen[j.Name], j)
	}
	if len(seen) != len(want) {
		t.Errorf("in pages of %d: found %d jobs, want %d", limit, len(seen), len(want))
	}
}
