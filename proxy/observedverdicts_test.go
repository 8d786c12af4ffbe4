package proxy

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// Every verdict is told once for each request, and no other is.
func TestEveryVerdictIsSeen(t *testing.T) {
	twice := func(f *fixture) {
		first := make(chan struct{})
		go func() {
			defer close(first)
			f.do(request{})
		}()
		synctest.Wait()
		f.do(request{})
		<-first
	}
	seen := make(map[string]bool)
	for verdict, c := range map[string]struct {
		besides []string // what the request is told for that makes this one possible
		config  Config
		happen  func(f *fixture)
	}{
		VerdictExecuted: {happen: func(f *fixture) { f.do(request{}) }},
		VerdictReplayed: {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.do(request{})
			f.do(request{})
		}},
		VerdictWaited: {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.serve = sleepy(time.Second, f)
			twice(f)
		}},
		VerdictBypassed: {happen: func(f *fixture) { f.do(request{key: "none"}) }},
		VerdictAborted: {happen: func(f *fixture) {
			f.do(request{reader: iotest.ErrReader(io.ErrUnexpectedEOF)})
		}},
		VerdictReplayRefused: {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.check = func(http.ResponseWriter, *http.Request) (bool, error) { return false, nil }
			f.do(request{})
			f.do(request{})
		}},
		verdictOf(CodeKeyMissing):      {config: Config{KeyRequired: true}, happen: func(f *fixture) { f.do(request{key: "none"}) }},
		verdictOf(CodeKeyInvalid):      {happen: func(f *fixture) { f.do(request{key: "a, b"}) }},
		verdictOf(CodeOwnerMissing):    {happen: func(f *fixture) { f.do(request{owner: "nobody"}) }},
		verdictOf(CodeRequestTooLarge): {config: Config{MaxRequestBody: 4}, happen: func(f *fixture) { f.do(request{}) }},
		verdictOf(CodeTooEarly):        {happen: func(f *fixture) { f.do(request{key: "none", early: true}) }},
		verdictOf(CodeKeyReused): {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.do(request{})
			f.do(request{body: "another"})
		}},
		verdictOf(CodeInFlight): {besides: []string{VerdictExecuted}, config: Config{Wait: time.Second}, happen: func(f *fixture) {
			f.serve = sleepy(time.Minute/2, f)
			twice(f)
		}},
		verdictOf(CodeTooManyWaiters): {
			besides: []string{VerdictExecuted, VerdictWaited}, config: Config{WaitersPerJob: 1},
			happen: func(f *fixture) {
				f.serve = sleepy(time.Second, f)
				go func() {
					time.Sleep(time.Second / 2)
					f.do(request{})
				}()
				twice(f)
			},
		},
		verdictOf(CodeOutcomeUnknown): {happen: func(f *fixture) {
			f.serve = breaks
			f.do(request{})
		}},
		verdictOf(CodeNotExecuted): {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.serve = after(time.Second, says(429, "busy"))
			twice(f)
		}},
		verdictOf(CodeResultNotKept): {besides: []string{VerdictExecuted}, config: Config{MaxResponseBody: 4}, happen: func(f *fixture) {
			f.do(request{})
			f.do(request{})
		}},
		verdictOf(CodeStoreUnavailable): {happen: func(f *fixture) {
			f.fails("create", errRefused)
			f.do(request{})
		}},
		verdictOf(CodeRecordLost): {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.serve = sleepy(8*time.Second, f)
			go func() {
				time.Sleep(time.Second)
				f.mem.wipe()
			}()
			twice(f)
		}},
		verdictOf(CodeLoop): {besides: []string{VerdictExecuted}, happen: func(f *fixture) {
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				f.do(request{header: r.Header.Clone()}).Result().Body.Close()
				return says(200, "done")(w, r)
			}
			f.do(request{})
		}},
	} {
		seen[verdict] = true
		t.Run(verdict, func(t *testing.T) {
			bubble(t, c.config, func(t *testing.T, f *fixture) {
				c.happen(f)
				synctest.Wait()
				want := map[string]int{verdict: 1}
				for _, other := range c.besides {
					want[other]++
				}
				f.incs.mu.Lock()
				defer f.incs.mu.Unlock()
				if !maps.Equal(f.incs.verdicts, want) {
					t.Errorf("told were the verdicts %v, want %v", f.incs.verdicts, want)
				}
			})
		})
	}
	if got, want := slices.Sorted(maps.Keys(seen)), slices.Sorted(slices.Values(Verdicts())); !slices.Equal(got, want) {
		t.Errorf("seen are the verdicts %v, want %v", got, want)
	}
}
