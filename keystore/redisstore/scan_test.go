package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// scanned returns the keys of all jobs, page by page.
func scanned(t *testing.T, s *Store, limit int) (keys []string) {
	t.Helper()
	for cursor := ""; ; {
		page, next, err := s.Scan(contextOf(t), cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page {
			keys = append(keys, j.KeySent)
		}
		if next == "" {
			slices.Sort(keys)
			return slices.Compact(keys)
		}
		cursor = next
	}
}

// TestScanFindsItsOwn: whatever else is in the database, and whatever the prefix
// looks like, a scan finds the records of its own store.
func TestScanFindsItsOwn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		admin := rawClient(t, "redis://"+addr)
		ctx := contextOf(t)
		// Each is matched by one of the others, were that taken for a pattern.
		prefixes := []string{`*`, `a*`, `a?c`, `a[b-x]c`, `a[^z]c`, `abc`, `a\bc`, `a\*`, `a]`, `axx`, `a\\[`, `j:`, `a*j:`}
		for _, prefix := range prefixes {
			s := openAt(t, "redis://"+addr, func(o *Options) { o.Prefix = prefix })
			for i := range 20 {
				mustCreate(t, s, job(s, fmt.Sprint(prefix, i)))
			}
			large := completed(s, mustCreate(t, s, job(s, prefix+"large")), make([]byte, 40<<10))
			if _, _, err := s.Create(ctx, large); err != nil {
				t.Fatal(err)
			}
			mustIndex(t, s, large)

			name := func(what string) string { return keystore.NameOf("main", "alice", prefix+what).String() }
			misspelled := job(s, prefix+"misspelled")
			record, err := keystore.EncodeRecord(misspelled)
			if err != nil {
				t.Fatal(err)
			}
			for _, foreign := range []*redis.IntCmd{
				admin.LPush(ctx, s.prefix+"j:{"+name("a list")+"}", "x"),
				admin.SAdd(ctx, s.prefix+"j:{"+name("a set")+"}", "x"),
				admin.HSet(ctx, s.prefix+"j:{"+name("a hash")+"}", "x", "y"),
				admin.ZAdd(ctx, s.prefix+"j:{"+name("a sorted set")+"}", redis.Z{Member: "x"}),
				admin.Append(ctx, s.prefix+"j:{"+name("no record")+"}", "x"),
				admin.Append(ctx, s.prefix+"j:{"+misspelled.Name.String()[1:]+"}", string(record)),
				admin.Append(ctx, s.prefix+"j:{"+strings.ToUpper(misspelled.Name.String())+"}", string(record)),
				admin.Append(ctx, s.prefix+"j:{"+misspelled.Name.String()+"}.", string(record)),
				admin.Append(ctx, s.prefix+"x:"+misspelled.Name.String(), string(record)),
			} {
				if err := foreign.Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, prefix := range prefixes {
			s := openAt(t, "redis://"+addr, func(o *Options) { o.Prefix = prefix })
			want := []string{prefix + "large"}
			for i := range 20 {
				want = append(want, fmt.Sprint(prefix, i))
			}
			slices.Sort(want)
			for _, limit := range []int{0, 3, 1000} {
				if got := scanned(t, s, limit); !slices.Equal(got, want) {
					t.Errorf("prefix %s, pages of %d: got %v, want %v", prefix, limit, got, want)
				}
			}
		}
	})
}

// TestScanRoundTrips: a page takes two commands and as many as it has records, in
// two round trips, and no page makes the server look at everything.
func TestScanRoundTrips(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		swaps := manyJobs(t, s, addr, 2000)
		if got := scanned(t, s, 1_000_000); len(got) != len(swaps) {
			t.Errorf("got %d jobs, want %d", len(got), len(swaps))
		}
		scans, gets := proxy.Count("scan"), proxy.Count("get")
		if strings.Contains(t.Name(), "/redis") && (scans < 4 || scans > 8) {
			t.Errorf("2000 jobs took %d SCAN, want about 4", scans)
		}
		if gets < 2000 || gets > 2100 || proxy.Count("keys") != 0 {
			t.Errorf("2000 jobs took %d GET, and %d KEYS", gets, proxy.Count("keys"))
		}
	})
}

func TestScanCursor(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		for _, cursor := range []string{"0", "-1", "x", "1 ", strings.Repeat("9", 30)} {
			if _, _, err := s.Scan(contextOf(t), cursor, 10); err == nil {
				t.Errorf("the cursor %q was taken", cursor)
			}
		}
	})
}

// TestScannedJobCreatedAnew: a job that was scanned has no body to create it with,
// and does not pretend to.
func TestScannedJobCreatedAnew(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		j := completed(s, job(s, "k"), make([]byte, 40<<10))
		mustCreate(t, s, j)
		page, _, err := s.Scan(contextOf(t), "", 10)
		if err != nil || len(page) != 1 || page[0].Result.Body != nil || page[0].Result.Apart == nil {
			t.Fatalf("scan: got %v, %v", page, err)
		}
		mustSwap(t, s, j.WriteID, dropped(s, j))
		mustCreate(t, s, page[0])
		if r := mustGet(t, s, j.Name).Result; !r.NotKept || r.Body != nil || r.Size != 40<<10 {
			t.Errorf("got %d bytes of %d, not kept %t; want it not kept", len(r.Body), r.Size, r.NotKept)
		}
	})
}

// TestIndexInBatches: 10,000 jobs are entered into the index in 20 commands.
func TestIndexInBatches(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		indexed := make([]keystore.IndexEntry, 10_000)
		for i := range indexed {
			indexed[i] = keystore.IndexEntry{Name: keystore.NameOf("main", "alice", fmt.Sprint(i)), LeaseEnd: s.Now()}
		}
		if err := s.Index(contextOf(t), indexed...); err != nil {
			t.Fatal(err)
		}
		if got := proxy.Count("zadd"); got != 20 {
			t.Errorf("took %d ZADD, want 20", got)
		}
		if got := len(entries(t, rawClient(t, "redis://"+addr))); got != len(indexed) {
			t.Errorf("%d entries are in the index", got)
		}
	})
}
