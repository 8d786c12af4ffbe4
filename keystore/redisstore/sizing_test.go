package redisstore

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// charge returns a job as a payment API has it: with a random UUID as its key.
func charge(s *Store, i int) *keystore.Job {
	key := fmt.Sprintf("7f9c2ba4-e88f-427d-a9d2-%012d", i)
	name := keystore.NameOf("main", "alice", key)
	j := keystore.NewJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: "main", Owner: keystore.OwnerDigest("alice"), KeySent: key,
		Fingerprint: keystore.Fingerprint{Recipe: 1, Sum: keystore.DigestOf([]byte(key))},
		Request:     keystore.RequestInfo{Method: "POST", Host: "api.example.com", Path: "/v1/charges", MediaType: "application/json", Size: 300},
		Created:     s.Now(), Retention: 24 * time.Hour,
	}, keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: 90 * time.Second, Listen: 11 * time.Minute})
	j.WriteID = keystore.NewWriteID()
	return j
}

// charged returns it completed, with a body of that size.
func charged(s *Store, j *keystore.Job, size int) *keystore.Job {
	body := []byte(strings.Repeat("x", size))
	next := j.Report(keystore.Report{
		Token: j.LastAttempt().Token, Outcome: keystore.OutcomeFinal, Reason: "answered with status 200", At: s.Now(),
		Evidence: keystore.Evidence{Upstream: "10.0.4.12:8443", Hooked: true, Asked: 1, Connected: 1, Wrote: 1, FirstByte: 1, Status: 200, Size: int64(size)},
		Response: &keystore.Response{Status: 200, Header: map[string][]string{
			"Content-Type": {"application/json; charset=utf-8"}, "Cache-Control": {"no-cache, no-store"}, "Request-Id": {"req_1MiN3gLkdIwHu7ix"},
			"Strict-Transport-Security": {"max-age=63072000; includeSubDomains; preload"}, "Vary": {"Origin"},
		}, Body: body, Size: int64(size), Answered: s.Now()},
	}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// onThePage returns a figure of the page on deployment: the number in the row that
// begins like this.
func onThePage(t *testing.T, row string) float64 {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "deployment.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` \| ([0-9,]+) B`).FindSubmatch(page)
	if found == nil {
		t.Fatalf("the page has no row %q", row)
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(string(found[1]), ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSizing: a job takes about as much memory as the page on deployment says.
func TestSizing(t *testing.T) {
	t.Parallel()
	const jobs = 1000
	for row, make := range map[string]func(s *Store, i int){
		"completed, without a body": func(s *Store, i int) {
			j := mustCreate(t, s, charge(s, i))
			mustSwap(t, s, j.WriteID, charged(s, j, 0))
		},
		"completed, an answer of 1 KiB": func(s *Store, i int) {
			j := mustCreate(t, s, charge(s, i))
			mustSwap(t, s, j.WriteID, charged(s, j, 1<<10))
		},
		"completed, an answer of 16 KiB": func(s *Store, i int) {
			j := mustCreate(t, s, charge(s, i))
			mustSwap(t, s, j.WriteID, charged(s, j, 16<<10))
		},
		"running or unknown, in the index": func(s *Store, i int) {
			mustIndex(t, s, mustCreate(t, s, charge(s, i)))
		},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := openAt(t, server.URL())
			admin := rawClient(t, server.URL())
			make(s, -1)
			before := usedMemory(t, admin)
			for i := range jobs {
				make(s, i)
			}
			each := float64(usedMemory(t, admin)-before) / jobs
			want := onThePage(t, row)
			t.Logf("%s: %.0f B, of which %d are the record's; the page says %.0f", row, each, memoryUsage(t, admin, s.recordKey(charge(s, 1).Name)), want)
			if each < want*0.75 || each > want*1.25 {
				t.Errorf("%s: it takes %.0f B, and the page says %.0f", row, each, want)
			}
		})
	}
}

func usedMemory(t *testing.T, admin *redis.Client) int64 {
	t.Helper()
	n, err := strconv.ParseInt(parseInfo(must(admin.Info(contextOf(t), "memory").Result()))["used_memory"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func memoryUsage(t *testing.T, admin *redis.Client, key string) int64 {
	t.Helper()
	return must(admin.MemoryUsage(contextOf(t), key).Result())
}

// BenchmarkShard says what a job costs the server: it has one core, whatever else
// runs on the machine.
func BenchmarkShard(b *testing.B) {
	for name, args := range map[string][]string{
		"in memory": nil, "every second": {"--appendonly", "yes"}, "always": {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		b.Run(name, func(b *testing.B) {
			server := redistest.Start(b, args...)
			s := openAt(b, server.URL())
			admin := rawClient(b, server.URL())
			cpu := func() float64 {
				info := parseInfo(must(admin.Info(b.Context(), "cpu").Result()))
				user, _ := strconv.ParseFloat(info["used_cpu_user"], 64)
				sys, _ := strconv.ParseFloat(info["used_cpu_sys"], 64)
				return user + sys
			}
			before, began := cpu(), time.Now()
			var wg sync.WaitGroup
			next := make(chan int, b.N)
			for i := range b.N {
				next <- i
			}
			close(next)
			for range 64 {
				wg.Go(func() {
					for i := range next {
						j := charge(s, i)
						if _, created, err := s.Create(b.Context(), j); err != nil || !created {
							b.Errorf("create: %t, %v", created, err)
						}
						if _, swapped, err := s.Swap(b.Context(), j.WriteID, charged(s, j, 1<<10)); err != nil || !swapped {
							b.Errorf("swap: %t, %v", swapped, err)
						}
					}
				})
			}
			wg.Wait()
			each := (cpu() - before) / float64(b.N)
			b.ReportMetric(each*1e6, "server-µs/job")
			b.ReportMetric(1/each, "jobs/s-of-one-core")
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "jobs/s-here")
		})
	}
}
