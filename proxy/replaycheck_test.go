package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// withdrawn is a check that refuses, as a server for authentication does.
func withdrawn(w http.ResponseWriter, _ *http.Request) (bool, error) {
	w.Header().Set("Www-Authenticate", "Bearer")
	w.Header().Set(HeaderJob, "forged")
	w.WriteHeader(http.StatusUnauthorized)
	_, err := io.WriteString(w, "who are you?")
	return false, err
}

// wantWithdrawn checks that an answer is that of the check, with nothing of the
// stored one.
func (r result) wantWithdrawn(t *testing.T) {
	t.Helper()
	r.wantBody(t, 401, "who are you?", false)
	if len(r.Header()) != 1 || r.Header().Get("Www-Authenticate") != "Bearer" {
		t.Errorf("the answer has the header %v", r.Header())
	}
}

// Somebody whose access was withdrawn gets no stored answer, although it is their
// own: it is for the site to say, whenever one is to be given.
func TestSEC03CheckBeforeAReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	var checks int
	f.check = func(w http.ResponseWriter, r *http.Request) (bool, error) { checks++; return withdrawn(w, r) }
	f.do(request{}).wantBody(t, 200, "execution 1", false)
	if checks != 0 {
		t.Error("the request that was executed was checked")
	}
	f.do(request{}).wantWithdrawn(t)
	f.do(request{body: "other"}).want(t, 409, CodeKeyReused)
	if checks != 1 || f.incs.verdicts["replay_refused"] != 1 {
		t.Errorf("%d checks, verdicts %v", checks, f.incs.verdicts)
	}
	f.check = func(http.ResponseWriter, *http.Request) (bool, error) { return true, nil }
	f.do(request{}).wantBody(t, 200, "execution 1", true)
	f.wantExecutions(1)
}

// A repetition that has waited is checked when there is an answer to give.
func TestSEC03CheckAfterWaiting(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		gate := make(chan struct{})
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			<-gate
			_, err := io.WriteString(w, "done")
			return err
		}
		f.check = withdrawn
		first, second := make(chan result), make(chan result)
		go func() { first <- f.do(request{}) }()
		synctest.Wait()
		go func() { second <- f.do(request{}) }()
		synctest.Wait()
		close(gate)
		(<-first).wantBody(t, 200, "done", false)
		(<-second).wantWithdrawn(t)
		f.wantExecutions(1)
	})
}

// That an answer is not there any more is a part of it.
func TestSEC03CheckBeforeAResultThatWasNotKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{MaxResponseBody: 1})
	f.do(request{}).wantBody(t, 200, "execution 1", false)
	f.check = withdrawn
	f.do(request{}).wantWithdrawn(t)
	f.check = func(http.ResponseWriter, *http.Request) (bool, error) { return true, nil }
	f.do(request{}).want(t, 410, CodeResultNotKept)
	f.wantExecutions(1)
}

// A request whose own attempt came too late gets the answer of another one, and
// so has to pass.
func TestSEC03CheckOfARequestThatWasSuperseded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		j := f.mem.job()
		own, other := j.Attempts[0].Token, keystore.NewToken()
		racing := f.sibling(j, own, other)
		won := racing.Report(keystore.Report{
			Token: other, Outcome: keystore.OutcomeFinal, At: f.store.Now(),
			Response: &keystore.Response{Status: 201, Body: []byte("won"), Size: 3},
		}).Next
		won.WriteID = keystore.NewWriteID()
		if _, swapped, err := f.store.Swap(t.Context(), j.WriteID, won); err != nil || !swapped {
			return fmt.Errorf("the sibling's result was not written: %w", err)
		}
		_, err := io.WriteString(w, "late")
		return err
	}
	f.check = withdrawn
	f.do(request{}).wantWithdrawn(t)
	f.check = nil
	f.do(request{}).wantBody(t, 201, "won", true)
	f.wantExecutions(1)
}

// Whatever a check does that lets a request pass, the replay is the answer as it
// was.
func TestCheckThatPassesLeavesNoTrace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, "created")
		return err
	}
	first := f.do(request{}).wantBody(t, 201, "created", false)
	f.check = func(w http.ResponseWriter, r *http.Request) (bool, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"amount":1}` || r.ContentLength != int64(len(body)) {
			t.Errorf("the check reads %q, %v, of a length of %d", body, err, r.ContentLength)
		}
		r.Method = http.MethodHead // as it asks somebody else
		w.WriteHeader(http.StatusEarlyHints)
		for _, name := range []string{"Content-Length", "Content-Type", "Content-Encoding", "Set-Cookie", "Trailer", "X-Check"} {
			w.Header().Set(name, "1")
		}
		return true, nil
	}
	again := f.do(request{}).wantBody(t, 201, "created", true)
	for name := range again.Header() {
		if _, was := first.Header()[name]; !was && name != HeaderReplayed && name != HeaderAnsweredAt {
			t.Errorf("the replay has %s: %q", name, again.Header()[name])
		}
	}
	if f.incs.verdicts[VerdictReplayed] != 1 {
		t.Errorf("verdicts %v", f.incs.verdicts)
	}
	f.wantExecutions(1)
}

// A check that does not say that the request passes has not let it pass.
func TestCheckThatDoesNotPass(t *testing.T) {
	t.Parallel()
	broken := errors.New("no connection")
	for name, c := range map[string]struct {
		check  func(w http.ResponseWriter, r *http.Request) (bool, error)
		status int
		body   string
		code   string
		err    error
	}{
		"silent":         {check: func(http.ResponseWriter, *http.Request) (bool, error) { return false, nil }, status: 403, code: CodeReplayRefused},
		"only hints":     {check: func(w http.ResponseWriter, _ *http.Request) (bool, error) { w.WriteHeader(103); return false, nil }, status: 403, code: CodeReplayRefused},
		"an error":       {check: func(http.ResponseWriter, *http.Request) (bool, error) { return false, broken }, status: 200, err: broken},
		"an error after": {check: func(http.ResponseWriter, *http.Request) (bool, error) { return true, broken }, status: 200, err: broken},
		"answers and more": {check: func(w http.ResponseWriter, r *http.Request) (bool, error) {
			_, err := withdrawn(w, r)
			return true, err
		}, status: 401, body: "who are you?"},
		"an empty answer": {check: func(w http.ResponseWriter, _ *http.Request) (bool, error) { w.WriteHeader(204); return false, nil }, status: 204},
		"an answer flushed": {check: func(w http.ResponseWriter, _ *http.Request) (bool, error) {
			return true, http.NewResponseController(w).Flush()
		}, status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{})
			f.do(request{})
			f.check = c.check
			r := f.do(request{})
			if !errors.Is(r.err, c.err) || r.Code != c.status || r.code() != c.code || (c.code == "" && r.Body.String() != c.body) {
				t.Errorf("got %d %q, error %v", r.Code, r.Body, r.err)
			}
			if len(r.Header()[HeaderJob])+len(r.Header()[HeaderReplayed])+len(r.Header()[HeaderExpires]) > 0 {
				t.Errorf("the answer names the job: %v", r.Header())
			}
			if f.incs.verdicts["replay_refused"] != 1 {
				t.Errorf("verdicts %v", f.incs.verdicts)
			}
			f.wantExecutions(1)
		})
	}
	t.Run("a panic", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, Config{})
		f.do(request{})
		f.check = func(http.ResponseWriter, *http.Request) (bool, error) { panic(http.ErrAbortHandler) }
		defer func() {
			if p := recover(); !isAbort(p) || f.incs.verdicts["replay_refused"] != 1 {
				t.Errorf("recovered %v, verdicts %v", p, f.incs.verdicts)
			}
		}()
		_ = f.deliver(httptest.NewRecorder(), request{})
	})
}
