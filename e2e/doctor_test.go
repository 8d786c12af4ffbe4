package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// doctor runs caddy idempotency doctor.
func (g *gateway) doctor(t *testing.T, exit int, says ...string) {
	t.Helper()
	r := g.cli("doctor")
	text := strings.Join(strings.Fields(r.out), " ")
	if r.code != exit {
		t.Errorf("doctor: exit code %d, want %d\n%s%s", r.code, exit, r.out, r.err)
	}
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("doctor does not say %q:\n%s", want, r.out)
		}
	}
}

// ready returns the answer of the readiness probe.
func (g *gateway) readiness(t *testing.T) (status int, body string) {
	t.Helper()
	status, body, err := get("http://" + g.admin + "/idempotency/ready")
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

// An eviction policy that deletes any key: doctor, the log of the start and the
// metrics say what will be lost and what to set; once that is set they say so too.
func TestDoctorOfAServerThatEvicts(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	server := startRedis(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	g := startGateway(t, to(up).on(server.store()))
	const (
		found  = "when its memory is full the server deletes any key (maxmemory-policy allkeys-lru)"
		risk   = "jobs that run and results are forgotten without a trace, and what is forgotten is executed again"
		remedy = "set maxmemory-policy noeviction"
	)
	eventually(t, "the log says what will be lost", func() bool {
		for line := range strings.Lines(g.log()) {
			if strings.Contains(line, `"level":"error"`) && strings.Contains(line, found) && strings.Contains(line, risk) && strings.Contains(line, remedy) {
				return true
			}
		}
		return false
	})
	g.doctor(t, 8, "DANGER eviction", "server "+server.Addr(), "found "+found, "risk "+risk, "remedy "+remedy, "maxmemory-policy allkeys-lru")
	const metric = `caddy_idempotency_store_finding{code="eviction",severity="danger",store="redis"} `
	if m := g.metrics(); !strings.Contains(m, metric+"1\n") || !regexp.MustCompile(`(?m)^caddy_idempotency_store_inspected_timestamp_seconds\{store="redis"\} [1-9]`).MatchString(m) {
		t.Errorf("the metrics don't say so:\n%s", m)
	}
	wantExecuted(t, g.client().do(post("k"))) // nothing requires it
	up.want("k", 1)

	server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	eventually(t, "doctor has nothing to say", func() bool { return g.cli("doctor").code == 0 })
	if m := g.metrics(); !strings.Contains(m, metric+"0\n") {
		t.Errorf("the metric stands:\n%s", m)
	}
	if log := g.log(); strings.Count(log, `"code":"eviction"`) != 2 || !strings.Contains(log, "no longer so: "+found) {
		t.Error("the log does not say that it is over, once")
	}
}

// A server that keeps nothing on its disk, where the store has to be durable: requests
// with a key are refused and nothing is sent, until it does.
func TestRequireDurableOfAServerThatForgets(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	server := startRedis(t)
	g := startGateway(t, to(up).on(server.store()).with("require_durable", ""))
	c := g.client()
	for range 3 {
		wantRefusal(t, c.do(post("k")), http.StatusServiceUnavailable, "store-unavailable")
	}
	up.want("k", 0)
	if a := c.do(post("")); a.status != http.StatusOK {
		t.Errorf("without a key: %v", a)
	}
	const risk = "every job is forgotten when the server restarts, and then a repetition is executed again"
	g.doctor(t, 8, "DANGER persistence", "found the server keeps nothing on its disk", "risk "+risk, "remedy set appendonly yes", "refused the store is not durable (persistence)")
	if log := g.log(); !strings.Contains(log, risk) {
		t.Error("the log does not say what will be lost")
	}
	if status, body := g.readiness(t); status != http.StatusServiceUnavailable || !strings.Contains(body, "not durable") {
		t.Errorf("readiness: %d %s", status, body)
	}
	up.want("k", 0)

	server.do("CONFIG", "SET", "appendonly", "yes")
	var a answer
	eventually(t, "the key executes", func() bool { a = c.do(post("k")); return a.status == http.StatusOK })
	wantExecuted(t, a)
	up.want("k", 1)
	eventually(t, "it is ready", func() bool { status, _ := g.readiness(t); return status == http.StatusOK })
	g.doctor(t, 7, "WARNING fsync") // once per second

	// A server that is down is no finding of its own, and is found as it was.
	server.Kill()
	eventually(t, "it is not ready", func() bool {
		status, body := g.readiness(t)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "does not answer")
	})
	eventually(t, "doctor can't reach it", func() bool { return g.cli("doctor").code == 5 })
	wantRefusal(t, c.do(post("k2")), http.StatusServiceUnavailable, "store-unavailable")
	up.want("k2", 0)
}

// The embedded store: its one file is what can be lost; and a file in memory is lost
// with the machine.
func TestDoctorOfTheEmbeddedStore(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	r := g.cli("doctor", "--json")
	var doctor struct {
		Severity string
		Stores   []struct {
			Store, Inspected, Error string
			About                   []string
			Findings                []struct{ Code, Severity, Found, Risk, Remedy string }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &doctor); err != nil || len(doctor.Stores) != 1 {
		t.Fatalf("doctor --json: %v\n%s%s", err, r.out, r.err)
	}
	s := doctor.Stores[0]
	if want := map[string]int{"note": 0, "warning": 7, "danger": 8}[doctor.Severity]; r.code != want {
		t.Errorf("the exit code is %d where the worst is %s", r.code, doctor.Severity)
	}
	if s.Store != "bolt" || s.Inspected == "" || s.Error != "" || len(s.About) != 1 || !strings.Contains(s.About[0], "idempotency.db: a file of ") {
		t.Errorf("got %+v", s)
	}
	single := false
	for _, f := range s.Findings {
		single = single || f.Code == "single" && f.Severity == "note" && strings.Contains(f.Risk, "if its disk is lost, so are all jobs")
	}
	if !single {
		t.Errorf("it does not say that there is one file: %+v", s.Findings)
	}
	if status, body := g.readiness(t); status != http.StatusOK || strings.TrimSpace(body) != `{"ready":true}` {
		t.Errorf("readiness: %d %s", status, body)
	}

	const memory = "/dev/shm"
	if mounts, err := os.ReadFile("/proc/mounts"); err != nil || !strings.Contains(string(mounts), " "+memory+" tmpfs ") {
		return // no such thing here
	}
	dir, err := os.MkdirTemp(memory, "doctor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g = startGateway(t, to(up).on("bolt "+filepath.Join(dir, "jobs.db")).with("require_durable", ""))
	g.doctor(t, 8, "DANGER volatile-disk", "the file lies in the machine's memory (tmpfs)", "forgotten when the machine restarts")
	wantRefusal(t, g.client().do(post("k")), http.StatusServiceUnavailable, "store-unavailable")
	up.want("k", 0)
}

// A process that has been told to end is not ready any more, while its servers still
// serve for the shutdown delay.
func TestNotReadyWhileTheProcessEnds(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "shutdown_delay 1h", to(up))
	if status, _ := g.readiness(t); status != http.StatusOK {
		t.Errorf("readiness: %d", status)
	}
	g.signal(syscall.SIGTERM)
	eventually(t, "it is not ready", func() bool {
		status, body := g.readiness(t)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "about to end")
	})
	wantExecuted(t, g.client().do(post("k")))
	up.want("k", 1)
}
