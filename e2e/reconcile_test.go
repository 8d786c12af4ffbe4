package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asking is a site that asks its upstream about unknown attempts: under the
// upstream's case lookup, with these lines in the block and this script.
// Without another line it does so for longer than any test takes.
func asking(up *upstream, lines string, script ...string) site {
	var block strings.Builder
	block.WriteString("{\nlookup GET /charges?key={http.idempotency.key}\nheader Up-Case lookup\nevery 100ms\n")
	for _, header := range script {
		block.WriteString("header " + header + "\n")
	}
	if !strings.Contains(lines, "for ") {
		lines += "\nfor 2h"
	}
	return to(up).with("reconcile", block.String()+lines+"\n}")
}

// awaitNote waits until a job's attempt says this about its lookups, and returns
// the attempt.
func awaitNote(t *testing.T, g *gateway, job, note string) (a shownAttempt) {
	t.Helper()
	eventually(t, "the attempt's lookups say: "+note, func() bool {
		return strings.Contains(g.look(job).attempt(t, 1).Lookups.Note, note)
	})
	return g.show(job).attempt(t, 1)
}

// An upstream executes and hangs up. Asked about it, it says that it did: the
// job is completed without anybody's help, and repetitions get the lookup's answer.
func TestReconcilerCompletesAJobByItself(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, asking(up, "succeeded 200", "Up-Hold asked").on(store))
		first := g.client().do(post("charged").tell("Up-Die", "noreply"))
		wantUnknown(t, first)
		retryAfter(t, first)
		up.reached("lookup", 1)
		if line := up.of("lookup")[0].line; line != "GET /charges?key=charged HTTP/1.1" {
			t.Errorf("the upstream was asked: %s", line)
		}
		wantUnknown(t, g.client().do(post("charged")))
		up.release("asked")
		a := untilStatus(t, g.client(), post("charged"), http.StatusOK)
		wantMarked(t, a)
		if !strings.Contains(a.body, `"case":"lookup"`) || a.job() != first.job() {
			t.Errorf("want the lookup's answer, of job %s, got %s %s", first.job(), a.job(), a.body)
		}
		s := g.show(first.job())
		if r := s.attempt(t, 1).Resolution; s.State != "completed" || r.As != "succeeded" || r.Actor != "reconciler" || !strings.Contains(r.Evidence, "200") {
			t.Errorf("want the job resolved by the reconciler, with its evidence, got %+v", s)
		}
		wantReplay(t, a, g.client().do(post("charged")))
		up.want("charged", 1)
	})
}

// A 404 that comes before its time settles nothing, however often: a gateway
// that stands still might yet be about to send.
func TestReconcilerDoesNotBelieveAnEarly404(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, asking(up, "succeeded 200\ncancelled 404 after 1h", "Up-Status 404"))
	first := g.client().do(post("early").tell("Up-Die", "noreply"))
	wantUnknown(t, first)
	up.reached("lookup", 5)
	a := awaitNote(t, g, first.job(), "too early to tell")
	if a.State != "unknown" || a.Lookups.Status != http.StatusNotFound || a.Lookups.Count < 1 {
		t.Errorf("want an unknown attempt with the lookup's status, got %+v", a)
	}
	wantUnknown(t, g.client().do(post("early")))
	up.want("early", 1)
}

// A 404 that was seen once settles nothing either: it has to be seen again half a
// minute later. Here the upstream says something else then.
func TestReconcilerDoesNotBelieveASingle404(t *testing.T) {
	t.Parallel()
	status := filepath.Join(t.TempDir(), "status")
	says := func(text string) {
		t.Helper()
		if err := os.WriteFile(status+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(status+".new", status); err != nil {
			t.Fatal(err)
		}
	}
	says("404")
	up := newUpstream(t)
	g := startGateway(t, asking(up, "succeeded 201\ncancelled 404 after 1ms", "Up-Status {file."+status+"}").with("lease", "2s"))
	first := g.client().do(post("single").tell("Up-Die", "noreply"))
	wantUnknown(t, first)
	awaitNote(t, g, first.job(), "to be confirmed")
	says("200")
	wantUnknown(t, g.client().do(post("single")))
	a := awaitNote(t, g, first.job(), "not one that settles anything")
	if a.State != "unknown" || a.Lookups.Status != http.StatusOK {
		t.Errorf("want an unknown attempt with the status of the latest lookup, got %+v", a)
	}
	wantUnknown(t, g.client().do(post("single")))
	up.want("single", 1)
}

// Seen twice, half a minute apart and late enough, a 404 cancels the attempt, and
// the next request is executed.
func TestReconcilerCancelsOnAConfirmed404(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, asking(up, "succeeded 200\ncancelled 404 after 1ms", "Up-Status 404").with("lease", "2s"))
	first := g.client().do(post("confirmed").tell("Up-Die", "noreply"))
	wantUnknown(t, first)
	awaitNote(t, g, first.job(), "to be confirmed")
	up.want("confirmed", 1)
	// Clients don't ask meanwhile: the first who does is executed.
	var s shown
	eventually(t, "the attempt is cancelled", func() bool {
		s = g.look(first.job())
		return s.attempt(t, 1).State == "cancelled"
	})
	if r := s.attempt(t, 1).Resolution; r.Actor != "reconciler" || !strings.Contains(r.Evidence, "404") {
		t.Errorf("want the reconciler's decision with its evidence, got %+v", r)
	}
	a := g.client().do(post("confirmed"))
	wantExecuted(t, a)
	if a.job() != first.job() {
		t.Errorf("the next attempt belongs to job %s, want %s", a.job(), first.job())
	}
	up.want("confirmed", 2)
}

// An upstream that can't tell, or does not let the gateway ask, settles nothing,
// though it says so until the time for asking is over. An operator sees what it said.
func TestReconcilerLeavesAJobUnknownWithEvidence(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"500", "401"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			g := startGateway(t, asking(up, "for 2s\nsucceeded 200", "Up-Status "+status))
			first := g.client().do(post("mute").tell("Up-Die", "noreply"))
			wantUnknown(t, first)
			a := awaitNote(t, g, first.job(), "asked for long enough")
			if a.State != "unknown" || a.Lookups.Count < 2 || len(up.of("lookup")) < 2 {
				t.Errorf("want an unknown attempt that was asked about several times, got %+v", a)
			}
			if text := g.done("show", first.job()); !strings.Contains(text, "status "+status+": asked for long enough") {
				t.Errorf("an operator is shown:\n%s", text)
			}
			wantUnknown(t, g.client().do(post("mute")))
			up.want("mute", 1)
		})
	}
}
