package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// authServer knows callers by their session, and says who may still have stored
// answers.
type authServer struct {
	*httptest.Server
	mu        sync.Mutex
	withdrawn map[string]bool
	nameless  bool // it lets everybody pass and says of nobody who it is
	asked     int  // who may have a stored answer
}

func newAuthServer(t *testing.T) *authServer {
	t.Helper()
	s := &authServer{withdrawn: make(map[string]bool)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *authServer) addr() string { return s.Listener.Addr().String() }

func (s *authServer) withdraw(session string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawn[session] = is
}

func (s *authServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := r.Header.Get("X-Session")
	if r.URL.Path == "/may" {
		s.asked++
		w.Header().Set("X-Account", "of the check")
	}
	if r.URL.Path == "/may" && s.withdrawn[session] || session == "" {
		w.Header().Set("Www-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte("withdrawn"))
		return
	}
	if r.URL.Path == "/who" && !s.nameless {
		w.Header().Set("X-Account", session)
	}
}

// checked is a block in which stored answers are given to those only who may
// still have them.
func (s *authServer) checked(u *upstream, more string) string {
	return `
	route {
		request_header -X-Account
		forward_auth ` + s.addr() + ` {
			uri /who
			copy_headers X-Account
		}
		idempotency {
			owner {http.request.header.X-Account}
			replay_check {
				header X-Checked yes
				forward_auth ` + s.addr() + ` {
					uri /may
					copy_headers X-Account
				}
			}
			` + more + `
		}
		reverse_proxy ` + u.Listener.Addr().String() + `
	}`
}

// waiting is how many repetitions wait in this process.
func waiting() (n int) {
	sharedStores.Range(func(_, store any) bool {
		stats, err := store.(*sharedStore).gateway.Stats()
		n += stats.Waiters
		return err == nil
	})
	return n
}

func wantWithdrawn(t *testing.T, a answer) {
	t.Helper()
	if a.status != 401 || a.body != "withdrawn" || a.header.Get("Www-Authenticate") == "" {
		t.Errorf("got %+v, want the check's answer", a)
	}
	for name := range a.header {
		if strings.HasPrefix(name, "Idempoten") {
			t.Errorf("the check's answer has %s: %s", name, a.header.Get(name))
		}
	}
}

// A stored answer is not given to somebody whose access was withdrawn since,
// whether the repetition finds it or has waited for it.
func TestSEC03WithdrawnAccessGetsNoStoredAnswer(t *testing.T) {
	u, auth := newUpstream(t), newAuthServer(t)
	load(t, site(t, auth.checked(u, "")))
	alice := []string{"X-Session", "alice"}
	first := post(t, "/pay", "k", alice...)
	if first.status != 200 || auth.asked != 0 {
		t.Fatalf("got %+v; asked %d times", first, auth.asked)
	}
	wantReplay := func() {
		t.Helper()
		a := post(t, "/pay", "k", alice...)
		if a.status != 200 || a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" || a.header.Get("X-Checked") != "" {
			t.Errorf("got %+v, want a replay of %+v", a, first)
		}
	}
	wantReplay()
	auth.withdraw("alice", true)
	wantWithdrawn(t, post(t, "/pay", "k", alice...))
	auth.withdraw("alice", false)
	wantReplay()

	waiter := make(chan answer)
	go func() { waiter <- post(t, "/hold", "h", alice...) }()
	<-u.entered
	go func() { waiter <- post(t, "/hold", "h", alice...) }()
	eventually(t, "a repetition waits", func() bool { return waiting() == 1 })
	auth.withdraw("alice", true)
	close(u.release)
	a, b := <-waiter, <-waiter
	if a.status != 200 {
		a, b = b, a
	}
	if a.status != 200 || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the first request got %+v", a)
	}
	wantWithdrawn(t, b)
	if n, m := u.executions("k"), u.executions("h"); n != 1 || m != 1 {
		t.Errorf("%d and %d executions", n, m)
	}
}

// That an answer was not kept is told to those only who could have had it.
func TestSEC03WithdrawnAccessIsNotToldThatAnAnswerIsGone(t *testing.T) {
	u, auth := newUpstream(t), newAuthServer(t)
	load(t, site(t, auth.checked(u, "max_response_body 1")))
	alice := []string{"X-Session", "alice"}
	post(t, "/pay", "k", alice...)
	if a := post(t, "/pay", "k", alice...); a.status != 410 || a.code() != "result-not-kept" {
		t.Errorf("got %+v", a)
	}
	auth.withdraw("alice", true)
	wantWithdrawn(t, post(t, "/pay", "k", alice...))
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// A check that fails gets the site's error page, and one that comes to nothing is
// no permission.
func TestSEC03ChecksThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		check, more, body string
		status            int
	}{
		"an error":             {check: `error "closed" 402`, status: 402},
		"an error, a page":     {check: `error "closed" 402`, more: "handle_errors {\nrespond \"page {err.status_code} [{http.idempotency.code}]\" 418\n}", status: 418, body: "page 402 []"},
		"nobody there":         {check: "forward_auth 127.0.0.1:1 {\nuri /\n}", status: 502},
		"answers after others": {check: "route {\nvars a b\n}\n@post method POST\nhandle @post {\nrespond \"no\" 403\n}", status: 403, body: "no"},
		"asks by HEAD":         {check: "method HEAD", status: 200},
		"only for others":      {check: "@get method GET\nrespond @get \"no\" 403", status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			load(t, site(t, protect(u, "owner shared\nreplay_check {\n"+c.check+"\n}")+"\n"+c.more))
			first := post(t, "/pay", "k")
			a := post(t, "/pay", "k")
			if c.status == 200 {
				c.body = first.body
			}
			if a.status != c.status || a.body != c.body {
				t.Errorf("got %+v, want %d %q", a, c.status, c.body)
			}
			if n := u.executions("k"); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

// The client's own word for who it is counts for nothing, also where the server
// for authentication says nothing of it.
func TestSEC05ForgedIdentity(t *testing.T) {
	u, auth := newUpstream(t), newAuthServer(t)
	load(t, site(t, auth.checked(u, "")))
	victim := post(t, "/pay", "k", "X-Session", "victim")
	forged := post(t, "/pay", "k", "X-Session", "mallory", "X-Account", "victim")
	if forged.header.Get("Idempotency-Job") == victim.header.Get("Idempotency-Job") || forged.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("mallory got %+v", forged)
	}
	if a := post(t, "/pay", "k", "X-Account", "victim"); a.status != 401 {
		t.Errorf("nobody got %+v", a)
	}
	auth.mu.Lock()
	auth.nameless = true
	auth.mu.Unlock()
	if a := post(t, "/pay", "k", "X-Session", "mallory", "X-Account", "victim"); a.status != 400 || a.code() != "owner-missing" {
		t.Errorf("somebody without a name got %+v", a)
	}
	if n := u.executions("k"); n != 2 {
		t.Errorf("%d executions, want the victim's and mallory's own", n)
	}
}
