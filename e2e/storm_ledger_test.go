package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
)

// ledger is the upstream of a storm. It writes down what it executes, and that is
// the truth by which everything else is judged: what a request does has been done
// as soon as it was read to its end.
//
// It does what the header lines of a request say, which name a provider each:
//
//	Script-<provider>: refuse=1 sleep=20ms die=noreply|truncate status=502 size=40000
type ledger struct {
	now func() time.Duration

	mu         sync.Mutex
	executions []history.Execution
	byAttempt  map[jobAttempt]*entry
	tries      map[string]int     // by key and provider
	lookups    []history.Decision // what was told to whom asked
}

// jobAttempt names an attempt.
type jobAttempt struct {
	job    string
	number int
}

// entry is what an attempt has come to.
type entry struct {
	body    string
	refused bool
}

func newLedger(now func() time.Duration) *ledger {
	return &ledger{now: now, byAttempt: make(map[jobAttempt]*entry), tries: make(map[string]int)}
}

// serve starts the provider with this name, and returns its address.
func (l *ledger) serve(t *testing.T, provider string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("ledger: listen: %v", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			l.lookUp(w, r)
			return
		}
		l.execute(w, r, provider)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// script is what an execution is told to do.
type script map[string]string

func scriptOf(line string) script {
	s := make(script)
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		s[name] = value
	}
	return s
}

func (s script) number(name string) int {
	n, _ := strconv.Atoi(s[name])
	return n
}

func (l *ledger) execute(w http.ResponseWriter, r *http.Request, provider string) {
	asked, err := io.ReadAll(r.Body)
	if err != nil {
		return // never read to its end
	}
	s := scriptOf(r.Header.Get("Script-" + provider))
	body, refused := l.enter(r, provider, string(asked), s)
	if d, err := time.ParseDuration(s["sleep"]); err == nil {
		time.Sleep(d)
	}
	status := http.StatusOK
	switch {
	case refused:
		status = http.StatusTooManyRequests
	case s["die"] == "noreply":
		panic(http.ErrAbortHandler)
	case s["status"] != "":
		status = s.number("status")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if s["die"] == "truncate" && !refused {
		_, _ = io.WriteString(w, body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, body)
}

// enter writes an execution down, and returns what it is answered with.
func (l *ledger) enter(r *http.Request, provider, asked string, s script) (body string, refused bool) {
	key, job := strings.Trim(r.Header.Get("Idempotency-Key"), `"`), r.Header.Get("Idempotency-Job")
	number, token, _ := strings.Cut(r.Header.Get("Idempotency-Attempt"), ";token=")
	attempt, _ := strconv.Atoi(number)
	kind := kindOf(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries[key+" "+provider]++
	refused = l.tries[key+" "+provider] <= s.number("refuse")
	body = fmt.Sprintf(`{"execution":%d,"provider":%q,"more":%q}`, len(l.executions)+1, provider, strings.Repeat("z", s.number("size")))
	l.executions = append(l.executions, history.Execution{
		Key: key, Asked: asked, At: l.now(), Job: job, Attempt: attempt, Token: token,
		Answer: digest(body), Refused: refused, Racing: kind == racingRoute, Retention: retentions[kind],
	})
	l.byAttempt[jobAttempt{job, attempt}] = &entry{body, refused}
	return body, refused
}

// digest stands for an answer's body: the beginning to be recognised by, and a sum
// so that no byte of it can be another one.
func digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return fmt.Sprintf("%.40s… %x", body, sum[:6])
}

// count returns how many executions there were.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.executions)
}

// of returns what an attempt has come to, nil if it never came.
func (l *ledger) of(job string, attempt int) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byAttempt[jobAttempt{job, attempt}]
}

// lookUp answers whoever asks what became of an attempt. What it answers is a
// decision, if it is believed.
func (l *ledger) lookUp(w http.ResponseWriter, r *http.Request) {
	job := r.URL.Query().Get("job")
	number, _ := strconv.Atoi(r.URL.Query().Get("attempt"))
	e := l.of(job, number)
	d := history.Decision{Job: job, Attempt: number, As: "cancelled", Began: l.now()}
	found := e != nil && !e.refused
	if found {
		d.As, d.Answer = "succeeded", digest(e.body)
	}
	d.Ended = d.Began
	l.mu.Lock()
	l.lookups = append(l.lookups, d)
	l.mu.Unlock()
	if !found {
		http.Error(w, "never heard of it", http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, e.body)
}

// tell adds what the ledger knows to a history.
func (l *ledger) tell(h *history.History) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.Executions = append(h.Executions, l.executions...)
	h.Decisions = append(h.Decisions, l.lookups...)
}
