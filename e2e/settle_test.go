package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unknownJob makes a job of which nobody knows whether it was executed: its
// upstream works on, and the gateway listens on.
func unknownJob(t *testing.T, g *gateway, up *upstream, key string) (job string) {
	t.Helper()
	a := g.client().do(post(key).tell("Up-Hold", key))
	wantUnknown(t, a)
	up.want(key, 1)
	if ids := g.list(); !slices.Contains(ids, a.job()) {
		t.Errorf("the list of unknown jobs is %v, and job %s is missing", ids, a.job())
	}
	return a.job()
}

// impatient is a site that gives up on attempts soon, and listens on for long.
func impatient(up *upstream) site { return to(up).with("timeout", "500ms") }

// wantLateSuccessDiscarded lets the first attempt's answer come, after it was
// resolved as something else: it is thrown away, announced, shown, and not replayed.
func wantLateSuccessDiscarded(t *testing.T, g *gateway, up *upstream, key, job, as string) {
	t.Helper()
	up.release(key)
	var first shownAttempt
	eventually(t, "the late answer was discarded", func() bool {
		first = g.look(job).attempt(t, 1)
		return first.State == "discarded"
	})
	if first.Evidence.Status != http.StatusOK || first.Resolution.As != as || first.Resolution.Actor != "night shift" {
		t.Errorf("want the answer's status and the decision with its actor, got %+v", first)
	}
	g.wantTold("contradicted", "error", "an attempt's end contradicts how it was resolved")
	if e, i := g.events()["contradicted"], g.incidents()["contradicted"]; e != 1 || i != 1 {
		t.Errorf("the contradiction was told %d times and counted %d times", e, i)
	}
	if text := g.done("show", job); !regexp.MustCompile(`(?m)^attempt 1 +discarded$`).MatchString(text) || !strings.Contains(text, "as "+as+" by night shift") {
		t.Errorf("an operator is shown:\n%s", text)
	}
}

// An operator sees a job, sees what the transport saw of it, and cancels the
// attempt: the next request is the next attempt of the same job. When the first
// one's success comes after all, it is too late.
func TestCancelledAttemptSucceedsTooLate(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, impatient(up).on(store))
		job := unknownJob(t, g, up, "cancelled")
		a := g.show(job).attempt(t, 1)
		if e := a.Evidence; a.State != "unknown" || a.Reason == "" || !e.Observed || e.Connected != 1 || e.Sent != 1 || e.FirstByte != 0 || e.Resent || e.Upstream != up.addr {
			t.Errorf("want that the request was sent whole, once, to %s, and no answer began, got %+v", up.addr, a)
		}
		if text := g.done("show", job); !strings.Contains(text, "connected, the whole request was sent, no answer began") {
			t.Errorf("an operator is shown:\n%s", text)
		}
		g.resolve(job, "cancelled")
		g.wantTold("resolved", "warn", "an unknown attempt was resolved")

		second := g.client().do(post("cancelled"))
		wantExecuted(t, second)
		if second.job() != job {
			t.Errorf("the next attempt belongs to job %s, want %s", second.job(), job)
		}
		wantHeader(t, up.of("cancelled")[1], "Idempotency-Attempt", `2;token="[0-9a-f]+"`)
		wantLateSuccessDiscarded(t, g, up, "cancelled", job, "cancelled")
		wantReplay(t, second, g.client().do(post("cancelled")))
		if s := g.show(job); s.State != "completed" || s.Result.Attempt != 2 {
			t.Errorf("want the job completed by its second attempt, got %+v", s)
		}
		up.want("cancelled", 2)
	})
}

// Without a newer attempt, too, what was cancelled counts for nothing: the late
// success is not replayed, and the next request is executed.
func TestCancelledAttemptCountsForNothing(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, impatient(up).on(store))
		job := unknownJob(t, g, up, "void")
		g.resolve(job, "cancelled")
		wantLateSuccessDiscarded(t, g, up, "void", job, "cancelled")
		a := g.client().do(post("void"))
		wantExecuted(t, a)
		if !strings.Contains(a.body, `"execution":2`) {
			t.Errorf("want the answer of the second execution, got %s", a.body)
		}
		up.want("void", 2)
	})
}

// Resolved as failed, a job takes the next request as its next attempt. The
// first one's success is too late once that has begun.
func TestFailedAttemptSucceedsAfterANewerOne(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, impatient(up).on(store))
		job := unknownJob(t, g, up, "failed")
		g.resolve(job, "failed")
		second := g.client().do(post("failed"))
		wantExecuted(t, second)
		wantLateSuccessDiscarded(t, g, up, "failed", job, "failed")
		wantReplay(t, second, g.client().do(post("failed")))
		up.want("failed", 2)
	})
}

// Resolved as succeeded with a response, a job is completed: whoever repeats the
// request gets that response, and nothing is executed any more, whatever the
// attempt itself answers later.
func TestResolvedAsSucceededReplaysTheGivenResponse(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, impatient(up).on(store))
		job := unknownJob(t, g, up, "given")
		file := filepath.Join(g.dir, "answer")
		if err := os.WriteFile(file, []byte("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nX-Charge: ch_17\r\n\r\n{\"id\":\"ch_17\"}"), 0o600); err != nil {
			t.Fatal(err)
		}
		g.resolve(job, "succeeded", "--response", file)
		wantGiven := func() {
			t.Helper()
			a := g.client().do(post("given"))
			if a.status != http.StatusCreated || a.body != `{"id":"ch_17"}` || a.header.Get("X-Charge") != "ch_17" || a.job() != job {
				t.Errorf("want the given response, got %d %v %s", a.status, a.header, a.body)
			}
			wantMarked(t, a)
		}
		wantGiven()
		if r := g.cli("resolve", job, "--as", "cancelled", "--evidence", "too late", "--yes"); r.code != 4 {
			t.Errorf("a second decision ended with code %d, want 4:\n%s%s", r.code, r.out, r.err)
		}
		if r := g.cli("forget", job, "--yes"); r.code != 4 {
			t.Errorf("forgetting a job whose attempt may still report ended with code %d, want 4:\n%s%s", r.code, r.out, r.err)
		}
		up.release("given")
		eventually(t, "the answer that came later is kept as evidence", func() bool {
			return g.look(job).attempt(t, 1).Evidence.Status == http.StatusOK
		})
		g.wantTold("contradicted", "error", "an attempt's end contradicts how it was resolved")
		wantGiven()
		up.want("given", 1)
	})
}
