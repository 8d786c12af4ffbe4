package caddymodule

import (
	"strings"
	"testing"
)

// The trace of a request that somebody traces is shown with the attempt that was started
// for it: in the admin API, by the command, and in the console. Each attempt has that of
// its own request, and none where the caller has decided not to be traced.
func TestAttemptsAreShownWithTheirTraces(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
	t.Setenv("OTEL_PROPAGATORS", "tracecontext")
	u := newUpstream(t)
	config, admin := adminSite(t, "", "tracing\n"+consoleSite(u, userOfHeader))
	load(t, config)
	const first, second, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
	dead := post(t, "/first-dies", "k", "Traceparent", "00-"+first+"-"+caller+"-01")
	id := dead.header.Get("Idempotency-Job")
	if dead.code() != "outcome-unknown" {
		t.Fatalf("got %+v", dead)
	}
	ask(t, admin, "POST", "jobs/"+id+"/resolve", `{"as":"failed","actor":"anna","evidence":"journal"}`).job(t)
	if a := post(t, "/first-dies", "k", "Traceparent", "00-"+second+"-"+caller+"-01"); a.status != 200 {
		t.Fatalf("got %+v", a)
	}

	wanted := []string{first, second}
	for name, j := range map[string]*jobView{
		"admin API": ask(t, admin, "GET", "jobs/"+id, "").job(t),
		"console":   browse(t, "GET", "/console/_api/jobs/"+id, "", ours...).job(t),
	} {
		for i, a := range j.Attempts {
			// The span is that of the request here, and not of its caller.
			if !strings.HasPrefix(a.Trace, "00-"+wanted[i]+"-") || !strings.HasSuffix(a.Trace, "-01") || strings.Contains(a.Trace, caller) {
				t.Errorf("%s: the trace of attempt %d is %q, want %s", name, a.Number, a.Trace, wanted[i])
			}
		}
		if len(j.Attempts) != len(wanted) {
			t.Errorf("%s: %d attempts", name, len(j.Attempts))
		}
	}
	caddyCommand(t, nil, "--address", admin, "show", id).want(t, 0, first, second)

	id = post(t, "/pay", "not-traced", "Traceparent", "00-"+first+"-"+caller+"-00").header.Get("Idempotency-Job")
	if j := ask(t, admin, "GET", "jobs/"+id, "").job(t); j.Attempts[0].Trace != "" {
		t.Errorf("what nobody traces has the trace %q", j.Attempts[0].Trace)
	}
}
