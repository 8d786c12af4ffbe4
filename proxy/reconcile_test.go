package proxy

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// asked is an upstream that is asked about attempts.
type asked struct {
	mu     sync.Mutex
	times  []time.Time
	answer func(n int) (*keystore.Response, error)
}

func (a *asked) lookup(context.Context, *keystore.Job, *keystore.Attempt) (*keystore.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, time.Now())
	return a.answer(len(a.times))
}

func (a *asked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.times)
}

func status(s int) func(int) (*keystore.Response, error) {
	return func(int) (*keystore.Response, error) {
		return &keystore.Response{Status: s, Header: http.Header{"Content-Type": {"application/json"}, "Etag": {`"x"`}}, Body: []byte(`{"data":[{"id":"ch_1"}]}`)}, nil
	}
}

// reconciled runs a test on a route whose only attempt broke off after it had
// been sent.
func reconciled(t *testing.T, a *asked, change func(*Reconcile), test func(t *testing.T, f *fixture)) {
	t.Helper()
	reconciledOn(t, Config{}, a, change, test)
}

func reconciledOn(t *testing.T, c Config, a *asked, change func(*Reconcile), test func(t *testing.T, f *fixture)) {
	t.Helper()
	rc := &Reconcile{
		Lookup: a.lookup, Every: 5 * time.Second, For: 15 * time.Minute,
		Rules: []ReconcileRule{
			{Statuses: []int{200}, As: keystore.AttemptSucceeded},
			{Statuses: []int{404}, As: keystore.AttemptCancelled, After: 2 * time.Minute},
		},
	}
	if change != nil {
		change(rc)
	}
	c.Reconcile = rc
	bubble(t, c, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.route.Reconcile(ctx)
		f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("EOF") }
		f.fail = Failure{Status: 502}
		if r := f.do(request{}).want(t, 504, CodeOutcomeUnknown); r.Header().Get("Retry-After") == "" {
			t.Error("something will settle the job, and the client is not invited to come back")
		}
		synctest.Wait()
		f.serve = nil
		test(t, f)
	})
}

func TestReconcileSucceeded(t *testing.T) {
	a := &asked{answer: status(200)}
	reconciled(t, a, nil, func(t *testing.T, f *fixture) {
		time.Sleep(20 * time.Second)
		r := f.do(request{}).wantBody(t, 200, `{"data":[{"id":"ch_1"}]}`, true)
		if r.Header().Get("Content-Type") != "application/json" {
			t.Errorf("headers %v", r.Header())
		}
		f.wantExecutions(1)
		res := f.mem.job().Attempts[0].Resolution
		if res == nil || res.Actor != reconcilerActor || !strings.Contains(res.Evidence, "200") {
			t.Errorf("resolution %+v", res)
		}
		time.Sleep(time.Hour)
		if a.count() != 1 {
			t.Errorf("%d lookups", a.count())
		}
	})
}

func TestReconcileReplaysAPart(t *testing.T) {
	a := &asked{answer: status(200)}
	reconciled(t, a, func(rc *Reconcile) { rc.ReplayFrom = "/data/0" }, func(t *testing.T, f *fixture) {
		time.Sleep(20 * time.Second)
		if r := f.do(request{}).wantBody(t, 200, `{"id":"ch_1"}`, true); r.Header().Get("Etag") != "" {
			t.Errorf("headers %v", r.Header())
		}
	})
}

func TestReconcilePartThatIsNotThere(t *testing.T) {
	a := &asked{answer: status(200)}
	reconciled(t, a, func(rc *Reconcile) { rc.ReplayFrom = "/data/1" }, func(t *testing.T, f *fixture) {
		time.Sleep(time.Hour)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		if l := f.mem.job().Attempts[0].Lookups; !strings.Contains(l.Note, "/data/1") {
			t.Errorf("lookups %+v", l)
		}
	})
}

// An answer that permits another execution counts only some time after the end
// of the attempt and of its lease, and when it has been seen twice.
func TestReconcileCancelled(t *testing.T) {
	a := &asked{answer: status(404)}
	reconciled(t, a, nil, func(t *testing.T, f *fixture) {
		lease := f.mem.job().Attempts[0].Lease.Sub(f.store.Now())
		time.Sleep(lease + 2*time.Minute - time.Second)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(31 * time.Second)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(3 * time.Minute)
		if s := f.mem.job().Attempts[0].State; s != keystore.AttemptCancelled {
			t.Fatalf("attempt is %s", s)
		}
		n := 0
		for _, at := range a.times {
			if since := at.Sub(f.mem.job().Attempts[0].Lease.Std()); since >= 2*time.Minute {
				n++
			}
		}
		if n < 2 {
			t.Errorf("%d answers were enough", n)
		}
		f.do(request{}).wantBody(t, 200, "execution 2", false)
		if n := f.mem.job().AttemptCount(); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

func TestReconcileNotConfirmed(t *testing.T) {
	a := &asked{}
	a.answer = func(n int) (*keystore.Response, error) {
		if n%2 == 0 {
			return status(404)(n)
		}
		return status(500)(n)
	}
	reconciled(t, a, nil, func(t *testing.T, f *fixture) {
		time.Sleep(time.Hour)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

// An upstream that has once said that it was executed, if only with an answer that
// can't be replayed, is not believed when it says the opposite.
func TestReconcileContradictoryAnswers(t *testing.T) {
	a := &asked{}
	a.answer = func(n int) (*keystore.Response, error) {
		if n%2 == 0 {
			return status(404)(n)
		}
		return status(200)(n)
	}
	reconciled(t, a, func(rc *Reconcile) { rc.ReplayFrom = "/data/1" }, func(t *testing.T, f *fixture) {
		time.Sleep(time.Hour)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

// As long as the gateway listens for an attempt's answer, the upstream may be
// working on it, whatever its lookup says.
func TestReconcileNotWhileListening(t *testing.T) {
	a := &asked{answer: status(404)}
	rc := &Reconcile{
		Lookup: a.lookup, Every: 5 * time.Second, For: 15 * time.Minute,
		Rules: []ReconcileRule{{Statuses: []int{404}, As: keystore.AttemptCancelled, After: 2 * time.Minute}},
	}
	bubble(t, Config{Reconcile: rc}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.route.Reconcile(ctx)
		f.unknownFor(9 * time.Minute)
		time.Sleep(6 * time.Minute)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(5 * time.Minute)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
	})
}

// What a gateway behind this one says of the lookup itself is nothing about the
// attempt, whatever status its site gives that.
func TestReconcileTakesNoRefusalForAnAnswer(t *testing.T) {
	for _, code := range []int{200, 404} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			a := &asked{answer: func(n int) (*keystore.Response, error) {
				answer, err := status(code)(n)
				answer.Header[HeaderRefused] = []string{CodeKeyMissing}
				return answer, err
			}}
			reconciled(t, a, nil, func(t *testing.T, f *fixture) {
				time.Sleep(time.Hour)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecutions(1)
				if note := f.mem.job().Attempts[0].Lookups.Note; !strings.Contains(note, "refused by a gateway") {
					t.Errorf("the operator is told %q", note)
				}
			})
		})
	}
}

func TestReconcileLeavesEvidence(t *testing.T) {
	for name, answer := range map[string]func(int) (*keystore.Response, error){
		"500":       status(500),
		"401":       status(401),
		"no answer": func(int) (*keystore.Response, error) { return nil, errors.New("refused") },
		"panic":     func(int) (*keystore.Response, error) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			a := &asked{answer: answer}
			reconciled(t, a, nil, func(t *testing.T, f *fixture) {
				time.Sleep(time.Hour)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecutions(1)
				l := f.mem.job().Attempts[0].Lookups
				if l.Count < 15 || l.Count > 60 || l.Count != a.count() || !strings.HasPrefix(l.Note, "asked for long enough") {
					t.Errorf("%d lookups, on record %+v", a.count(), l)
				}
				if last := a.times[len(a.times)-1].Sub(a.times[0]); last < 14*time.Minute || last > 17*time.Minute {
					t.Errorf("it went on asking for %v", last)
				}
				if early, late := a.times[1].Sub(a.times[0]), a.times[14].Sub(a.times[13]); late < 2*early {
					t.Errorf("it does not back off: %v, later %v", early, late)
				}
			})
		})
	}
}

func TestReconcileLeavesOtherSpacesAlone(t *testing.T) {
	a := &asked{answer: status(200)}
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		c := f.route.Config
		c.Space = "other"
		c.Reconcile = &Reconcile{Lookup: a.lookup, Every: time.Second, For: time.Minute, Rules: []ReconcileRule{{Statuses: []int{200}, As: keystore.AttemptSucceeded}}}
		other, err := NewRoute(f.gateway, c)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go other.Reconcile(ctx)
		f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("EOF") }
		f.fail = Failure{Status: 502}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(time.Minute)
		if a.count() != 0 {
			t.Errorf("%d lookups", a.count())
		}
	})
}

func TestReconcileSettings(t *testing.T) {
	t.Parallel()
	good := func() *Reconcile {
		return &Reconcile{
			Lookup: new(asked).lookup, Every: time.Second, For: time.Minute,
			Rules: []ReconcileRule{{Statuses: []int{200}, As: keystore.AttemptSucceeded}},
		}
	}
	if err := good().validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Reconcile){
		"no lookup":            func(rc *Reconcile) { rc.Lookup = nil },
		"no pause":             func(rc *Reconcile) { rc.Every = 0 },
		"for less than every":  func(rc *Reconcile) { rc.For = time.Millisecond },
		"no rules":             func(rc *Reconcile) { rc.Rules = nil },
		"no pointer":           func(rc *Reconcile) { rc.ReplayFrom = "data" },
		"cancelled at once":    func(rc *Reconcile) { rc.Rules[0].As = keystore.AttemptCancelled },
		"unknown":              func(rc *Reconcile) { rc.Rules[0].As = keystore.AttemptUnknown },
		"no statuses":          func(rc *Reconcile) { rc.Rules[0] = ReconcileRule{As: keystore.AttemptCancelled} },
		"no status":            func(rc *Reconcile) { rc.Rules[0].Statuses = []int{20} },
		"one status two rules": func(rc *Reconcile) { rc.Rules = append(rc.Rules, rc.Rules[0]) },
	} {
		rc := good()
		change(rc)
		if rc.validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestJSONPointer(t *testing.T) {
	t.Parallel()
	doc := `{"a":{"b/c":[1,{"x~y": 9007199254740993 }]},"":{"":"e"},"n":null}`
	for pointer, want := range map[string]string{
		"/a/b~1c/0": "1", "/a/b~1c/1/x~0y": "9007199254740993", "//": `"e"`, "/n": "",
		"/a/b~1c/2": "", "/a/b~1c/-1": "", "/a/b~1c/01": "", "/z": "", "/n/x": "",
	} {
		got, err := jsonPointer([]byte(doc), pointer)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", pointer, got, err)
		}
	}
}

// As long as the upstream can't be asked, no time passes for which to ask it.
func TestReconcileWaitsUntilItCanAsk(t *testing.T) {
	a := &asked{answer: func(int) (*keystore.Response, error) { return nil, ErrNotAskable }}
	reconciled(t, a, nil, func(t *testing.T, f *fixture) {
		time.Sleep(time.Hour)
		if l := f.mem.job().Attempts[0].Lookups; l.Count != 0 || !strings.Contains(l.Note, "no request of the route has come by") {
			t.Errorf("lookups %+v", l)
		}
		a.mu.Lock()
		a.answer = status(200)
		a.mu.Unlock()
		time.Sleep(10 * time.Second)
		f.do(request{}).wantBody(t, 200, `{"data":[{"id":"ch_1"}]}`, true)
	})
}

// What a lookup says of itself is kept, and what it met on its way is not.
func TestReconcileKeepsWhatALookupSaysOfItself(t *testing.T) {
	for want, err := range map[string]error{
		"no answer came: it was cut": LookupError("it was cut"),
		"no answer came":             errors.New("GET /charges?key=k"),
		"no answer came within 10s":  context.DeadlineExceeded,
	} {
		t.Run(want, func(t *testing.T) {
			a := &asked{answer: func(int) (*keystore.Response, error) { return nil, err }}
			reconciled(t, a, nil, func(t *testing.T, f *fixture) {
				time.Sleep(time.Minute)
				if l := f.mem.job().Attempts[0].Lookups; l.Note != want {
					t.Errorf("got %q, want %q", l.Note, want)
				}
			})
		})
	}
}

// A lookup that ends with its configuration says nothing of the upstream.
func TestReconcileEndsWithoutATrace(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		c := f.route.Config
		c.Reconcile = &Reconcile{
			Lookup: func(ctx context.Context, _ *keystore.Job, _ *keystore.Attempt) (*keystore.Response, error) {
				cancel()
				<-ctx.Done()
				return nil, ctx.Err()
			},
			Every: time.Second, For: time.Minute, Rules: []ReconcileRule{{Statuses: []int{200}, As: keystore.AttemptSucceeded}},
		}
		route, err := NewRoute(f.gateway, c)
		if err != nil {
			t.Fatal(err)
		}
		f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("EOF") }
		f.fail = Failure{Status: 502}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		synctest.Wait()
		route.Reconcile(ctx)
		if l := f.mem.job().Attempts[0].Lookups; l != (keystore.Lookups{}) {
			t.Errorf("lookups %+v", l)
		}
	})
}

// What a lookup says is no result either if it breaks the contract.
func TestReconcileUnderAContract(t *testing.T) {
	for part, honours := range map[string]bool{"/data/0": true, "/data": false, "": false} {
		t.Run(part, func(t *testing.T) {
			a := &asked{answer: status(200)}
			contract := contractOf(t, ContractRules{})
			reconciledOn(t, Config{Contract: contract}, a, func(rc *Reconcile) { rc.ReplayFrom = part }, func(t *testing.T, f *fixture) {
				time.Sleep(time.Hour)
				if honours {
					f.do(request{}).wantBody(t, 200, `{"id":"ch_1"}`, true)
					return
				}
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				if l := f.mem.job().Attempts[0].Lookups; !strings.Contains(l.Note, "breaks the contract") || strings.Contains(l.Note, "ch_1") {
					t.Errorf("lookups %+v", l)
				}
			})
		})
	}
}
