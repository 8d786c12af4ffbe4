package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// asked is how often the store was asked to create a record.
func (s *memStore) asked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range s.ops {
		if op == "create" {
			n++
		}
	}
	return n
}

// What was replayed once is replayed again without the store, also when that is
// down, until its time in memory is over.
func TestCacheReplaysWithoutTheStore(t *testing.T) {
	bubble(t, Config{CacheSize: mib, CacheTTL: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		first := f.do(request{}).wantBody(t, 200, "execution 1", true)
		asked := f.mem.asked()
		f.mem.fail(func(string) error { return errInjected }, nil)
		for range 3 {
			again := f.do(request{}).wantBody(t, 200, "execution 1", true)
			if !equalHeaders(again.Header(), first.Header()) {
				t.Errorf("replayed with the header %v, before with %v", again.Header(), first.Header())
			}
		}
		if got := f.mem.asked(); got != asked {
			t.Errorf("the store was asked %d times for replays from memory", got-asked)
		}
		time.Sleep(10 * time.Second)
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.mem.fail(nil, nil)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
	})
}

// What was just given, and recorded, is replayed without the store, just as the store
// would have it replayed. What was not recorded is nothing to be replayed.
func TestCacheKeepsWhatWasJustGiven(t *testing.T) {
	bubble(t, Config{CacheSize: mib, CacheTTL: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		asked := f.mem.asked()
		f.mem.fail(func(string) error { return errInjected }, nil)
		remembered := f.do(request{}).wantBody(t, 200, "execution 1", true)
		if got := f.mem.asked(); got != asked {
			t.Errorf("the store was asked %d times for a replay from memory", got-asked)
		}
		f.mem.fail(nil, nil)
		f.route.known = nil
		stored := f.do(request{}).wantBody(t, 200, "execution 1", true)
		if !equalHeaders(remembered.Header(), stored.Header()) {
			t.Errorf("replayed from memory with the header %v, from the store with %v", remembered.Header(), stored.Header())
		}

		f.route.known = newCache(mib, 10*time.Second)
		f.mem.fail(func(op string) error {
			if op == "swap" {
				return errInjected
			}
			return nil
		}, nil)
		f.do(request{key: "unrecorded"}).wantBody(t, 200, "execution 2", false)
		if n := len(f.route.known.entries); n != 0 {
			t.Errorf("%d answers are in memory that were not recorded", n)
		}
		f.mem.fail(nil, nil)
		f.wantExecutions(2)
	})
}

func equalHeaders(a, b http.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if !slices.Equal(a[name], b[name]) {
			return false
		}
	}
	return true
}

// The same function decides: another request with the key is refused, and the check
// before replays is asked each time.
func TestCacheDecidesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{CacheSize: mib, CacheTTL: time.Hour})
	f.do(request{})
	f.do(request{}).wantBody(t, 200, "execution 1", true)
	f.do(request{body: "other"}).want(t, 409, CodeKeyReused)
	f.do(request{owner: "bob"}).wantBody(t, 200, "execution 2", false)
	f.check = withdrawn
	f.do(request{}).wantWithdrawn(t)
	f.wantExecutions(2)
}

// A job that has expired is new, whatever is in memory.
func TestCacheEndsWithTheJob(t *testing.T) {
	bubble(t, Config{
		CacheSize: mib, CacheTTL: 24 * time.Hour,
		Timeout: time.Second, Linger: time.Second, Retention: time.Minute,
	}, func(t *testing.T, f *fixture) {
		f.do(request{})
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		time.Sleep(time.Minute - time.Millisecond)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		time.Sleep(time.Millisecond)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
	})
}

// A job that was forgotten here is gone at once, also for a request that had read
// its record before.
func TestCacheForgets(t *testing.T) {
	bubble(t, Config{CacheSize: mib, CacheTTL: time.Hour, Timeout: time.Second, Linger: time.Second, Lease: 2 * time.Second}, func(t *testing.T, f *fixture) {
		f.do(request{})
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		job := f.mem.job()
		time.Sleep(time.Minute) // until no attempt may report any more
		forget := func() {
			if err := f.gateway.Forget(t.Context(), job.ID, "tester"); err != nil {
				t.Error(err)
			}
		}
		// This request has the record, and is asked whether it may have it.
		f.check = func(http.ResponseWriter, *http.Request) (bool, error) { f.check = nil; forget(); return true, nil }
		f.route.known = newCache(mib, time.Hour)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
		f.wantExecutions(2)
	})
}

// No more is kept than there is room for, and what was used last stays.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	const size = 40 << 10
	f := newFixture(t, Config{CacheSize: size, CacheTTL: time.Hour})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		_, err := w.Write(bytes.Repeat([]byte("x"), 4<<10))
		return err
	}
	for n := range 30 {
		for _, key := range []string{strconv.Itoa(n), "hot"} {
			f.do(request{key: key})
			f.do(request{key: key})
		}
		if f.route.known.used > size || len(f.route.known.entries) != f.route.known.order.Len() {
			t.Fatalf("%d bytes in %d entries, listed %d", f.route.known.used, len(f.route.known.entries), f.route.known.order.Len())
		}
	}
	asked := f.mem.asked()
	f.do(request{key: "hot"})
	if f.mem.asked() != asked {
		t.Error("what was used all the time was dropped")
	}
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		_, err := w.Write(make([]byte, size/3))
		return err
	}
	f.do(request{key: "large"})
	f.do(request{key: "large"})
	asked = f.mem.asked()
	f.do(request{key: "large"})
	if f.mem.asked() != asked+1 {
		t.Error("one answer took the place of many")
	}
	f.wantExecutions(32)
}

// What is in memory as a record is the same job when it is asked for, counts as what it
// is then, and never takes more than its part.
func TestCacheUnpacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["X-Parts"] = []string{"a", "", "b"}
		w.WriteHeader(http.StatusCreated)
		_, err := w.Write(bytes.Repeat([]byte("x"), 1<<10))
		return err
	}
	f.do(request{})
	job := f.mem.job()
	now := f.gateway.store.Now()

	c := newCache(mib, time.Hour)
	c.put(job, 0, time.Now())
	packed := c.used
	first, second := c.get(job.Name, now, 0), c.get(job.Name, now, 0)
	if first == nil || first != second {
		t.Fatal("the job was read from its record again")
	}
	if !reflect.DeepEqual(first, job) {
		t.Errorf("put %+v, got %+v", job, first)
	}
	if packed >= sizeOf(job) || c.used != sizeOf(first) {
		t.Errorf("counted as %d bytes and then %d; the job has about %d", packed, c.used, sizeOf(job))
	}

	// Here the record would have room, and the job has not.
	c = newCache(4*packed, time.Hour)
	known := &cached{name: job.Name, job: job, size: sizeOf(job), until: time.Now().Add(time.Hour), expires: job.Expires}
	known.pack()
	c.entries[job.Name], c.used = c.order.PushFront(known), known.size
	for range 2 {
		if got := c.get(job.Name, now, 0); !reflect.DeepEqual(got, job) {
			t.Errorf("put %+v, got %+v", job, got)
		}
	}
	if c.used != packed {
		t.Errorf("%d bytes are in memory, %d before it was asked for", c.used, packed)
	}
}

// What is encrypted in the store is so in memory.
func TestCacheKeepsSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{CacheSize: mib, CacheTTL: time.Hour, Keyring: ring(t, key1)})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		_, err := w.Write([]byte("iban-0815"))
		return err
	}
	const key = "order-4711"
	f.do(request{key: key})
	for _, e := range f.route.known.entries {
		if record := string(e.Value.(*cached).record); record == "" || strings.Contains(record, "iban") || strings.Contains(record, key) {
			t.Errorf("in memory there is %q", record)
		}
	}
	for range 2 {
		f.do(request{key: key}).wantBody(t, 200, "iban-0815", true)
	}
	for _, e := range f.route.known.entries {
		j := e.Value.(*cached).job
		if strings.Contains(string(j.Result.Body), "iban") || j.KeySent != "" || j.Result.Header != nil {
			t.Errorf("in memory there is %+v", j.Result)
		}
	}
	if len(f.route.known.entries) != 1 {
		t.Errorf("%d jobs in memory", len(f.route.known.entries))
	}
}

// Duplicates of a request that others wait for already are not asked of the store:
// they wait with them.
func TestDuplicatesJoinInMemory(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		gate := make(chan struct{})
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			<-gate
			_, err := w.Write([]byte("done"))
			return err
		}
		results := make(chan result, 100)
		send := func(n int) {
			for range n {
				go func() { results <- f.do(request{}) }()
			}
			synctest.Wait()
		}
		send(2)
		asked := f.mem.asked()
		send(50)
		if got := f.mem.asked() - asked; got != 0 {
			t.Errorf("the store was asked for %d of 50 duplicates", got)
		}
		f.do(request{body: "other"}).want(t, 409, CodeKeyReused)
		close(gate)
		synctest.Wait()
		for range 52 {
			r := <-results
			if r.Code != 200 || r.Body.String() != "done" {
				t.Errorf("got %d %q", r.Code, r.Body)
			}
		}
		f.wantExecutions(1)
	})
}

// A client that was told of a failure, and sends its request again, is not told of it
// once more because others still wait to hear of it.
func TestFreshRequestsAreNotToldOfWhatWasBefore(t *testing.T) {
	bubble(t, Config{Wait: time.Minute}, func(t *testing.T, f *fixture) {
		gate := make(chan struct{})
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			if f.executions.Load() == 1 {
				<-gate
				w.WriteHeader(http.StatusTooManyRequests)
				return nil
			}
			_, err := fmt.Fprintf(w, "execution %d", f.executions.Load())
			return err
		}
		results := make(chan result, 2)
		send := func() { results <- f.do(request{}) }
		go send()
		synctest.Wait()
		go send()
		synctest.Wait()
		time.Sleep(time.Second)
		// The hint of the attempt's end takes its time, or is lost.
		f.mem.fail(func(op string) error {
			if op == "get" {
				return errInjected
			}
			return nil
		}, nil)
		close(gate)
		if r := <-results; r.Code != http.StatusTooManyRequests {
			t.Fatalf("got %d %s", r.Code, r.Body)
		}
		time.Sleep(10 * time.Millisecond)
		time.AfterFunc(time.Second, func() { f.mem.fail(nil, nil) })
		f.do(request{}).wantBody(t, 200, "execution 2", false)
		<-results
	})
}

// Whoever was waiting in memory for a job is told which one it was that has vanished.
func TestLostWhileJoined(t *testing.T) {
	bubble(t, Config{Wait: time.Minute}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(20*time.Second, f)
		results := make(chan result, 3)
		for range 3 {
			go func() { results <- f.do(request{}) }()
			synctest.Wait()
		}
		id := f.mem.job().ID
		f.mem.wipe()
		for range 2 {
			if r := <-results; r.code() != CodeRecordLost || !strings.Contains(r.Body.String(), id) {
				t.Errorf("got %d %s; it names no job %s", r.Code, r.Body, id)
			}
		}
		<-results
	})
}
