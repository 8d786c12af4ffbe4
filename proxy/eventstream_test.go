package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// events is an upstream that answers with n events, one each interval, and a
// trailer. It ends with its context as reverse_proxy does.
func events(n int, interval time.Duration) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		for i := range n {
			select {
			case <-time.After(interval):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
			if _, err := io.WriteString(w, event(i)); err != nil {
				return err
			}
		}
		w.Header().Set(http.TrailerPrefix+"Tokens", fmt.Sprint(n))
		return nil
	}
}

func event(i int) string { return fmt.Sprintf("data: %d\n\n", i) }

func allEvents(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(event(i))
	}
	return b.String()
}

// viewer is a client who notes when it could see what.
type viewer struct {
	*httptest.ResponseRecorder
	began time.Time
	mu    sync.Mutex
	head  time.Duration   // when the answer's head had come
	parts []time.Duration // when each part had come
	unseen,
	told bool
}

func newViewer() *viewer { return &viewer{ResponseRecorder: httptest.NewRecorder(), began: time.Now()} }

func (v *viewer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unseen = true
	return v.ResponseRecorder.Write(p)
}

// FlushError shows what was written to whoever looks.
func (v *viewer) FlushError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.told {
		v.told, v.head = true, time.Since(v.began)
	}
	if v.unseen {
		v.parts = append(v.parts, time.Since(v.began))
		v.unseen = false
	}
	return nil
}

// watch delivers a request, and reports whether the client saw a broken transfer.
func (f *fixture) watch(w http.ResponseWriter, q request) (broken bool) {
	defer func() { broken = isAbort(recover()) }()
	if err := f.deliver(w, q); err != nil {
		f.t.Errorf("got %v", err)
	}
	return false
}

// An event stream reaches the client as it comes, however long it takes, and is
// the job's result when it has ended: whoever repeats the request gets all of it.
func TestREP13EventStreamIsPassedOnAsItComes(t *testing.T) {
	// 40 minutes: longer than timeout and linger, and many leases.
	const n, interval = 80, 30 * time.Second
	bubble(t, Config{Wait: time.Hour}, func(t *testing.T, f *fixture) {
		f.serve = events(n, interval)
		first := newViewer()
		broken := make(chan bool, 1)
		go func() { broken <- f.watch(first, request{}) }()
		time.Sleep(time.Minute)
		waiter := make(chan result, 1)
		go func() { waiter <- f.do(request{}) }()
		if <-broken {
			t.Error("the transfer was broken")
		}
		if first.head != 0 {
			t.Errorf("the answer's head came after %v", first.head)
		}
		if len(first.parts) != n {
			t.Fatalf("the answer came in %d parts, want %d", len(first.parts), n)
		}
		for i, at := range first.parts {
			if want := time.Duration(i+1) * interval; at != want {
				t.Errorf("event %d came after %v, want %v", i, at, want)
			}
		}
		got := result{first.ResponseRecorder, nil}.wantBody(t, 200, allEvents(n), false)
		if got.Header().Get(HeaderJob) == "" || got.Header().Get("Content-Length") != "" {
			t.Errorf("header: %v", got.Header())
		}
		(<-waiter).wantBody(t, 200, allEvents(n), true)
		again := f.do(request{}).wantBody(t, 200, allEvents(n), true)
		for name, r := range map[string]result{"first": got, "again": again} {
			if tokens := r.Result().Trailer.Get("Tokens"); tokens != fmt.Sprint(n) {
				t.Errorf("%s: trailer %q", name, tokens)
			}
		}
		f.wantExecutions(1)
	})
}

// How long a duplicate waits is its own matter, and not the stream's.
func TestDuplicateOfAStreamWaitsNoLongerThanItShould(t *testing.T) {
	bubble(t, Config{Wait: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = events(100, 30*time.Second)
		go f.watch(newViewer(), request{})
		time.Sleep(5 * time.Minute)
		began := time.Now()
		f.do(request{}).want(t, 409, CodeInFlight)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("refused after %v", took)
		}
		time.Sleep(time.Hour)
		f.do(request{}).wantBody(t, 200, allEvents(100), true)
		f.wantExecutions(1)
	})
}

// What was cut is no result, neither for the client who saw it nor for anybody
// else: nobody knows what the upstream has done.
func TestREP07CutEventStreamIsUnknownAndBrokenForTheClient(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			_ = events(5, time.Second)(w, r)
			panic(http.ErrAbortHandler)
		}
		first := newViewer()
		if !f.watch(first, request{}) {
			t.Error("the client sees a clean end")
		}
		if got := first.Body.String(); got != allEvents(5) {
			t.Errorf("the client got %q", got)
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		if e := f.mem.job().LastAttempt().Evidence; e.Status != 200 || e.Size != int64(len(allEvents(5))) {
			t.Errorf("evidence: %+v", e)
		}
		f.wantExecutions(1)
	})
}

// A stream whose upstream falls silent ends as unknown, after stream_idle and
// not before: the timeouts of other answers don't matter any more.
func TestSilentEventStream(t *testing.T) {
	bubble(t, Config{Timeout: 5 * time.Second, StreamIdle: 40 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			_ = events(3, 30*time.Second)(w, r)
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		began := time.Now()
		if !f.watch(newViewer(), request{}) {
			t.Error("the client sees a clean end")
		}
		if took := time.Since(began); took != 130*time.Second {
			t.Errorf("it ended after %v", took)
		}
		if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptUnknown || a.Reason != errStreamIdle.Error() {
			t.Errorf("attempt is %s: %s", a.State, a.Reason)
		}
	})
}

// A client that stands still keeps nobody waiting: the answer is captured, and
// recorded when the upstream ends. It gets all of it when it goes on.
func TestSlowClientOfAStreamHoldsNothing(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = events(20, time.Second)
		wake := make(chan struct{})
		slow := &client{ResponseRecorder: httptest.NewRecorder(), until: time.Now().Add(5500 * time.Millisecond), wake: wake}
		broken := make(chan bool, 1)
		go func() { broken <- f.watch(slow, request{}) }()
		time.Sleep(21 * time.Second)
		f.gateway.mu.Lock()
		if n := len(f.gateway.attempts); n != 0 {
			t.Errorf("%d attempts are still running", n)
		}
		f.gateway.mu.Unlock()
		f.do(request{}).wantBody(t, 200, allEvents(20), true)
		time.Sleep(time.Hour)
		close(wake)
		if <-broken {
			t.Error("the client sees a broken transfer")
		}
		result{slow.ResponseRecorder, nil}.wantBody(t, 200, allEvents(20), false)
		f.wantExecutions(1)
	})
}

// A client that leaves, before a stream or in the middle, misses it and changes
// nothing for anybody else.
func TestGoneClientDoesNotTouchAStream(t *testing.T) {
	for name, after := range map[string]time.Duration{"before the answer": 0, "in the middle": 95 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Timeout: 30 * time.Second, Linger: time.Second}, func(t *testing.T, f *fixture) {
				f.serve = events(30, 10*time.Second)
				gone := &client{ResponseRecorder: httptest.NewRecorder(), until: time.Now().Add(after)}
				f.watch(gone, request{})
				time.Sleep(10 * time.Minute)
				f.do(request{}).wantBody(t, 200, allEvents(30), true)
				f.wantExecutions(1)
			})
		})
	}
}

// A stream without an end, whose client has long gone, does not hold its job for
// ever.
func TestEndlessStream(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Second, Retention: time.Hour}, func(t *testing.T, f *fixture) {
		f.serve = events(1000, time.Minute)
		gone := &client{ResponseRecorder: httptest.NewRecorder(), until: time.Now().Add(time.Minute)}
		f.watch(gone, request{})
		time.Sleep(time.Hour)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.gateway.mu.Lock()
		defer f.gateway.mu.Unlock()
		if len(f.gateway.attempts) != 0 {
			t.Error("it goes on")
		}
		f.wantExecutions(1)
	})
}

// A stream that outgrows what is kept is passed on whole, and not executed again
// for that.
func TestREP09EventStreamTooLargeToKeep(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 100}, func(t *testing.T, f *fixture) {
		f.serve = events(50, time.Second)
		first := newViewer()
		if f.watch(first, request{}) {
			t.Error("the transfer was broken")
		}
		result{first.ResponseRecorder, nil}.wantBody(t, 200, allEvents(50), false)
		if len(first.parts) != 50 {
			t.Errorf("the answer came in %d parts", len(first.parts))
		}
		f.do(request{}).want(t, 410, CodeResultNotKept)
		f.wantExecutions(1)
	})
}

// A client that reads on slowly is not one that has stalled, however much there
// is to read before the upstream can go on.
func TestSlowClientOfALargeStreamIsNotLeftBehind(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 400 << 10, StreamIdle: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 20 {
				if _, err := w.Write(make([]byte, 40<<10)); err != nil {
					return err
				}
			}
			return nil
		}
		slow := &unhurried{httptest.NewRecorder(), 5 * time.Second}
		if f.watch(slow, request{}) {
			t.Error("the client was left behind")
		}
		if got := slow.Body.Len(); got != 800<<10 {
			t.Errorf("the client got %d bytes", got)
		}
		f.do(request{}).want(t, 410, CodeResultNotKept)
		f.wantExecutions(1)
	})
}

// unhurried is a client that takes its time for each part.
type unhurried struct {
	*httptest.ResponseRecorder
	pause time.Duration
}

func (u *unhurried) Write(p []byte) (int, error) {
	time.Sleep(u.pause)
	return u.ResponseRecorder.Write(p)
}

// Where the status proves nothing, nothing of the answer is shown.
func TestStreamThatProvesNothingIsNotPassedOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusBadGateway)
			_, err := io.WriteString(w, event(1))
			return err
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

// A stream for whose beginning nobody waits any more is a late result.
func TestLateStream(t *testing.T) {
	bubble(t, Config{Timeout: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			time.Sleep(20 * time.Second)
			return events(3, time.Second)(w, r)
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(time.Minute)
		f.do(request{}).wantBody(t, 200, allEvents(3), true)
		f.wantExecutions(1)
	})
}

// The client has everything by then: that the store does not take the result in
// time is no reason to keep it waiting, and the result is recorded later.
func TestEndOfAStreamDoesNotWaitForTheStore(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			f.mem.fail(func(string) error { return errInjected }, nil)
			return events(3, time.Second)(w, r)
		}
		time.AfterFunc(10*time.Minute, func() { f.mem.fail(nil, nil) })
		first, began := newViewer(), time.Now()
		if f.watch(first, request{}) {
			t.Error("the transfer was broken")
		}
		if took := time.Since(began); took > 3*time.Second+answerTime {
			t.Errorf("the answer ended after %v", took)
		}
		time.Sleep(time.Hour)
		f.do(request{}).wantBody(t, 200, allEvents(3), true)
		f.wantExecutions(1)
	})
}

// What a client has seen is what a repetition will see. If somebody has decided
// otherwise while the answer came, its client must not take it for the result.
func TestStreamThatLostItsJobIsBroken(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second, Timeout: 5 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			f.mem.fail(func(string) error { return errInjected }, nil) // so that its lease lapses
			return events(30, time.Second)(w, r)
		}
		broken := make(chan bool, 1)
		go func() { broken <- f.watch(newViewer(), request{}) }()
		time.Sleep(20 * time.Second)
		f.mem.fail(nil, nil)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		if _, err := f.gateway.Resolve(t.Context(), decide(f.mem.job(), keystore.AttemptSucceeded)); err != nil {
			t.Fatal(err)
		}
		if !<-broken {
			t.Error("the client sees a clean end")
		}
		f.do(request{}).wantBody(t, 201, "charged", true)
		f.wantExecutions(1)
	})
}
