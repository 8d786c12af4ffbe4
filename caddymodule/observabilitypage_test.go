package caddymodule

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

const observabilityPage = "docs/observability/README.md"

var inDesc = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// metricsOfCode returns the names of all metrics with their labels.
func metricsOfCode(t *testing.T) map[string]string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 1000)
	for _, c := range metrics.collectors() {
		c.Describe(descs)
	}
	close(descs)
	all := make(map[string]string)
	for d := range descs {
		found := inDesc.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("can't read %s", d)
		}
		all[found[1]] = found[2]
	}
	return all
}

// What the page says of metrics is what there is, no more and no less.
func TestObservabilityPageMetrics(t *testing.T) {
	t.Parallel()
	page := pages.Of(t, "..", observabilityPage)
	is := metricsOfCode(t)
	said := make(map[string]string)
	for _, row := range tableOf(t, page.Section(t, "## Metrics"), "metric") {
		labels := names(row[1])
		said[names(row[0])[0]] = strings.Join(labels, ",")
	}
	for name, labels := range is {
		if got, listed := said[name]; !listed || got != labels {
			t.Errorf("%s has the labels %q, and the page lists %q", name, labels, got)
		}
	}
	for name := range said {
		if _, there := is[name]; !there {
			t.Errorf("there is no metric %s", name)
		}
	}
	values := func(first string) (all []string) {
		for _, row := range tableOf(t, page.Section(t, "## Metrics"), first) {
			all = append(all, names(row[0])...)
		}
		return all
	}
	var incidents []string
	for _, i := range proxy.Incidents() {
		incidents = append(incidents, string(i))
	}
	wantSame(t, "verdicts", values("verdict"), proxy.Verdicts())
	wantSame(t, "incidents", values("incident"), incidents)
	wantSame(t, "kinds of errors", values("error"), slices.Clone(storeErrors))
	wantSame(t, "operations", values("operation"), slices.Clone(storeOperations))
}

// What there is a name for is in the lists that metrics begin with.
func TestListsOfNamesAreComplete(t *testing.T) {
	t.Parallel()
	source := readFile(t, "../proxy/observer.go")
	named := func(pattern string) (all []string) {
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(source, -1) {
			all = append(all, found[1])
		}
		return all
	}
	var incidents, events []string
	for _, i := range proxy.Incidents() {
		incidents = append(incidents, string(i))
	}
	for _, e := range proxy.EventNames() {
		events = append(events, string(e))
	}
	wantSame(t, "incidents", named(`(?m)^\tIncident\w+ +Incident += "(\w+)"`), incidents)
	wantSame(t, "events", named(`(?m)^\tEvent\w+ +EventName += "(\w+)"`), events)
	for _, verdict := range named(`(?m)^\tVerdict\w+ += "(\w+)"`) {
		if !slices.Contains(proxy.Verdicts(), verdict) {
			t.Errorf("the verdict %s is missing", verdict)
		}
	}
	source = readFile(t, "../proxy/refusal.go")
	for _, code := range named(`(?m)^\tCode\w+ += "([a-z-]+)"`) {
		ofStatus := code == proxy.CodeNoSuchJob || code == proxy.CodeMethodNotAllowed
		if slices.Contains(proxy.Verdicts(), strings.ReplaceAll(code, "-", "_")) == ofStatus {
			t.Errorf("the code %s", code)
		}
	}
}

func TestObservabilityPagePlaceholdersEventsAndSpans(t *testing.T) {
	t.Parallel()
	page := pages.Of(t, "..", observabilityPage)
	var said []string
	for _, row := range tableOf(t, page.Section(t, "## Placeholders"), "placeholder") {
		said = append(said, strings.TrimSuffix(strings.TrimPrefix(names(row[0])[0], "{"+placeholderPrefix), "}"))
	}
	wantSame(t, "placeholders", said, slices.Clone(placeholderNames))
	for _, name := range append(slices.Clone(said), "no_such") {
		if _, known := new(exchange).placeholder(placeholderPrefix + name); known != (name != "no_such") {
			t.Errorf("placeholder %s is known: %t", name, known)
		}
	}

	said = nil
	for _, row := range tableOf(t, page.Section(t, "## Access log"), "field") {
		said = append(said, names(row[0])...)
	}
	fields := zapcore.NewMapObjectEncoder()
	full := accountFields{Record: keystore.Name{1}, Job: "j"}
	if err := full.MarshalLogObject(fields); err != nil {
		t.Fatal(err)
	}
	var is []string
	for name := range fields.Fields {
		is = append(is, name)
	}
	wantSame(t, "fields of the access log", said, is)

	said, is = nil, nil
	for _, row := range tableOf(t, page.Section(t, "## Events"), "event") {
		said = append(said, names(row[0])...)
	}
	for _, e := range proxy.EventNames() {
		is = append(is, eventPrefix+string(e))
	}
	wantSame(t, "events", said, is)
	said, is = nil, nil
	for _, row := range tableOf(t, page.Section(t, "## Events"), "data") {
		said = append(said, names(row[0])...)
	}
	job := &keystore.Job{Attempts: []keystore.Attempt{{Number: 1}}}
	for name := range eventData(proxy.Event{Job: job, Attempt: 1}) {
		is = append(is, name)
	}
	wantSame(t, "data of events", said, is)

	said = nil
	for _, first := range []string{"span", "attribute"} {
		for _, row := range tableOf(t, page.Section(t, "## Traces"), first) {
			said = append(said, names(row[0])...)
		}
	}
	wantSame(t, "spans and their attributes", said, []string{
		proxy.SpanClaim, proxy.SpanWait, proxy.SpanAttempt, proxy.SpanCommit, proxy.SpanReplay, proxy.AttributeVerdict,
		proxy.AttributeJob, proxy.AttributeAttempt, proxy.AttributeProvider, proxy.AttributeOutcome,
	})
}

func TestObservabilityPageLog(t *testing.T) {
	t.Parallel()
	code := logged.Of(t, "../proxy", ".", "../keystore", "../keystore/boltstore", "../keystore/redisstore")
	said := logged.Documented(t, "..")
	if len(code.Lines) < 40 {
		t.Fatalf("only %d lines were found", len(code.Lines))
	}
	for line, level := range code.Lines {
		if said.Lines[line] != level {
			t.Errorf("| %s | %s |   is not on the page", line, level)
		}
	}
	for line := range said.Lines {
		if code.Lines[line] == "" {
			t.Errorf("nothing logs %q", line)
		}
	}
	wantSame(t, "fields of the log", said.Fields, code.Fields)
}

var inExpression = regexp.MustCompile(`caddy_idempotency_[a-z_]+`)

// The dashboard and the rules ask for nothing that there is not, every alert has its
// place in the runbook, and every one is tried.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "docs", "observability")
	is := metricsOfCode(t)
	checkNames := func(file, text string) {
		for _, name := range inExpression.FindAllString(text, -1) {
			for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
				base := strings.TrimSuffix(name, suffix)
				if _, there := is[base]; there && strings.HasSuffix(name, suffix) {
					name = ""
					break
				}
			}
			if name != "" {
				t.Errorf("%s asks for %s, which there is not", file, name)
			}
		}
	}
	dashboard := readFile(t, dir, "dashboard.json")
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(dashboard), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		if len(p.Targets) == 0 || !inExpression.MatchString(p.Targets[0].Expr) {
			t.Errorf("panel %q shows nothing", p.Title)
		}
	}
	rules, tests, runbook := readFile(t, dir, "alerts.yml"), readFile(t, dir, "alerts.test.yml"), readFile(t, dir, "runbook.md")
	checkNames("the dashboard", dashboard)
	checkNames("alerts.yml", rules)
	checkNames("alerts.test.yml", tests)
	shown := dashboard + rules
	for name := range is {
		if !strings.Contains(shown, name) {
			t.Errorf("neither dashboard nor rules use %s", name)
		}
	}
	var alerts, entries []string
	for _, found := range regexp.MustCompile(`(?m)- alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		alerts = append(alerts, found[1])
		if strings.Count(tests, "alertname: "+found[1]+"\n") != 2 {
			t.Errorf("%s is not tried", found[1])
		}
		if !strings.Contains(rules, "/runbook.md#"+strings.ToLower(found[1])+"\n") {
			t.Errorf("%s does not lead to the runbook", found[1])
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(runbook, -1) {
		entries = append(entries, found[1])
	}
	wantSame(t, "entries of the runbook", entries, alerts)
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts.test.yml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
