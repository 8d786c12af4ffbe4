package caddymodule

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

func init() { caddy.RegisterModule(new(forgetful)) }

// forgetful is a store that takes every write and keeps nothing, so that a test can
// make very many requests.
type forgetful struct{ unopened }

func (*forgetful) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency.stores.idempotency_test", New: func() caddy.Module { return new(forgetful) }}
}

func (*forgetful) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { d.Next(); return nil }
func (*forgetful) Settings() string                                { return "" }
func (s *forgetful) Open(*slog.Logger) (keystore.Store, error)     { return s, nil }

func (*forgetful) Create(context.Context, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, true, nil
}

func (*forgetful) Swap(context.Context, keystore.WriteID, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, true, nil
}

// series are the values of all the module's metrics in the running configuration,
// by name and labels. Of a histogram it is the count.
func series(t *testing.T) map[string]float64 {
	t.Helper()
	ctx := caddy.ActiveContext()
	return seriesOf(t, ctx.GetMetricsRegistry())
}

func seriesOf(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "caddy_idempotency_") {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, pair := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
			}
			name := family.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Counter != nil:
				values[name] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				values[name] = m.GetGauge().GetValue()
			default:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	p := newProving(t, safeCase, "", "") // whose proofs are shown as well
	p.prove(`{}`)
	post(t, "/charge", "k")
	eventually(t, "it is shown whether the provider is proven", func() bool {
		_, shown := series(t)[`caddy_idempotency_provider_proven{provider="backup",space="payments"}`]
		return shown
	})
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "caddy_idempotency_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

// No counter falls, and none is lost, however often the configuration is replaced.
func TestMOD01MetricsKeepTheirValuesOverReloads(t *testing.T) {
	u := newUpstream(t)
	config := site(t, protect(u, "owner shared\nwait %ds\nkey Idempotency-Key required"))
	load(t, fmt.Sprintf(config, 30))
	for n := range 20 {
		insist(t, "/pay", fmt.Sprintf("k%d", n))
		insist(t, "/pay", "k0")
		insist(t, "/refund", "k0")
		insist(t, "/pay", "")
		before := series(t)
		if err := reload(fmt.Sprintf(config, n+1)); err != nil {
			t.Fatal(err)
		}
		after := series(t)
		for name, value := range before {
			is, there := after[name]
			counts := strings.Contains(name, "_total{") || strings.Contains(name, "_duration_seconds{")
			if !there || counts && is < value {
				t.Errorf("reload %d: %s was %v and is %v", n, name, value, is)
			}
		}
		for _, name := range []string{
			`caddy_idempotency_requests_total{verdict="executed"}`, `caddy_idempotency_requests_total{verdict="key_reused"}`,
			`caddy_idempotency_requests_total{verdict="key_missing"}`, `caddy_idempotency_attempts_total{outcome="final",provider=""}`,
			`caddy_idempotency_attempt_duration_seconds{provider=""}`,
			`caddy_idempotency_store_operation_duration_seconds{operation="create",store="bolt"}`,
		} {
			if after[name] < float64(n+1) {
				t.Errorf("reload %d: %s is %v", n, name, after[name])
			}
		}
	}
}

// Whatever clients send, there are no more series than before. The first of the
// requests take the whole way through Caddy.
func TestMetricsHaveNoLabelThatClientsChoose(t *testing.T) {
	const requests, throughCaddy = 100_000, 1000
	load(t, site(t, "idempotency {\nowner {http.request.header.X-User}\nstore idempotency_test\nlabel {http.request.header.User-Agent}\n}\nrespond done"))
	ctx := caddy.ActiveContext()
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	server := app.(*caddyhttp.App).Servers["srv0"]
	gateway := proxy.NewGateway(measured(new(forgetful), "idempotency_test", slog.New(slog.DiscardHandler)), proxy.GatewayOptions{Observer: metrics})
	t.Cleanup(gateway.Close)
	route, err := proxy.NewRoute(gateway, proxy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	direct := route.Middleware(func(r *http.Request) string { return r.Header.Get("X-User") }, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	host := "127.0.0.1" + address[strings.LastIndex(address, ":"):]
	ask := func(n int) int {
		handler := http.Handler(server)
		r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("http://host-%d.example/pay/%d?q=%d", n, n, n), strings.NewReader("amount=10"))
		if n >= throughCaddy {
			handler = direct
		} else {
			r.Host = host
		}
		r.Header.Set("Idempotency-Key", fmt.Sprintf("key-%d", n))
		r.Header.Set("X-User", fmt.Sprintf("user-%d", n))
		r.Header.Set("User-Agent", fmt.Sprintf("client/%d", n))
		if n%10 == 1 {
			r.Method = fmt.Sprintf("METHOD%d", n)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	executed := func() float64 { return series(t)[`caddy_idempotency_requests_total{verdict="executed"}`] }
	base := executed()
	var before []string
	for n := range requests {
		if status := ask(n); status != 200 {
			t.Fatalf("request %d: status %d", n, status)
		}
		if n == 0 {
			before = slices.Collect(maps.Keys(series(t)))
		}
	}
	if n := executed() - base; n != requests {
		t.Errorf("%v requests were counted", n)
	}
	for name := range series(t) {
		// These come when the jobs of a store were first counted.
		if !slices.Contains(before, name) && !strings.Contains(name, "unresolved_jobs") && !strings.Contains(name, "oldest_unknown") {
			t.Errorf("there is a new series: %s", name)
		}
	}
}

// sturdy is a store with everything that a gateway may ask one for.
type sturdy struct{ unopened }

func (sturdy) Durable() bool                      { return true }
func (sturdy) ClockOffset() (time.Duration, bool) { return time.Minute, true }

// The meter hides nothing of the store.
func TestMeteredStoreCanWhatTheStoreCan(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	offset, known := measured(sturdy{}, "test", log).ClockOffset()
	if !measured(sturdy{}, "test", log).Durable() || offset != time.Minute || !known {
		t.Error("something of the store is hidden")
	}
	offset, known = measured(unopened{}, "test", log).ClockOffset()
	if measured(unopened{}, "test", log).Durable() || offset != 0 || known {
		t.Error("the store can more than it can")
	}
}

// A store that is down is one line in the log, and so is its return.
func TestMetricsOfAStoreThatIsDown(t *testing.T) {
	s := &inspectable{}
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.stores)
	m := measured(s, "down_test", slog.New(slog.NewTextHandler(&log, nil)))
	failed := func(kind string) float64 {
		var sum float64
		for name, value := range seriesOf(t, registry) {
			if strings.Contains(name, `error="`+kind+`"`) && strings.Contains(name, `store="down_test"`) {
				sum += value
			}
		}
		return sum
	}
	for range 3 {
		if _, err := m.Get(t.Context(), keystore.Name{}); err == nil {
			t.Fatal("it answered")
		}
	}
	m.SwapMany(t.Context(), make([]keystore.Swap, 2))
	if n := failed("not_applied"); n != 4 {
		t.Errorf("%v errors were counted", n)
	}
	m.note("get", m.get, time.Now(), nil)
	m.note("get", m.get, time.Now(), context.Canceled)
	if n := failed("ended"); n != 1 {
		t.Errorf("%v ended calls were counted", n)
	}
	got := lines(&log)
	if len(got) != 2 || !strings.HasPrefix(got[0], `ERROR msg="the store does not answer`) || !strings.HasPrefix(got[1], `INFO msg="the store answers again"`) {
		t.Errorf("the log has\n%s", strings.Join(got, "\n"))
	}
}
