package caddymodule

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/dustin/go-humanize"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

var inCode = regexp.MustCompile("`([^`]+)`")

// tableOf returns the cells of the first table of a section with this heading in its
// first column.
func tableOf(t *testing.T, p pages.Page, first string) [][]string {
	t.Helper()
	return p.Table(t, first)
}

// names returns what stands in code in a cell.
func names(cell string) (all []string) {
	for _, found := range inCode.FindAllStringSubmatch(cell, -1) {
		all = append(all, found[1])
	}
	return all
}

func wantSame(t *testing.T, what string, said, is []string) {
	t.Helper()
	slices.Sort(said)
	slices.Sort(is)
	if said, is = slices.Compact(said), slices.Compact(is); !slices.Equal(said, is) {
		t.Errorf("%s: the page has\n%v\nand the code\n%v", what, said, is)
	}
}

var optionsAre = regexp.MustCompile(`the options are ([a-z0-9_]+(?:, [a-z0-9_]+)*), at `)

// optionsIn returns the options of a block as the parser names them to whoever has
// written another.
func optionsIn(t *testing.T, before, after string) []string {
	t.Helper()
	_, err := adapt(":80 {\nidempotency {\n" + before + "\nno_such_option\n" + after + "\n}\n}\n")
	if err == nil {
		t.Fatalf("%q takes any option", before)
	}
	found := optionsAre.FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("%q: no options in: %v", before, err)
	}
	return strings.Split(found[1], ", ")
}

// fieldsOf returns the names of a struct's fields in JSON, and those of the structs
// in it that the page describes in the same table.
func fieldsOf(v any, within ...any) (all []string) {
	inner := make(map[reflect.Type]bool)
	for _, v := range within {
		inner[reflect.TypeOf(v)] = true
	}
	var add func(reflect.Type)
	add = func(of reflect.Type) {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			all = append(all, name)
			kind := field.Type
			for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
				kind = kind.Elem()
			}
			if inner[kind] {
				add(kind)
			}
		}
	}
	add(reflect.TypeOf(v))
	return all
}

// The page with the options has those of the parser, the fields of the modules, and
// their defaults.
func TestReferencePage(t *testing.T) {
	page := pages.Of(t, "..", "docs/reference.md")
	for _, s := range []struct {
		heading string
		options []string
		fields  []string
	}{
		{"## Directive idempotency", optionsIn(t, "", ""), fieldsOf(Handler{})},
		{"### fingerprint", optionsIn(t, "fingerprint json {", "}"), fieldsOf(Fingerprint{})},
		{"### encrypt_with", nil, fieldsOf(EncryptionKey{})},
		{"### provider", []string{"send_key"}, fieldsOf(Provider{})},
		{"### contract", optionsIn(t, "contract x {", "}"), fieldsOf(Contract{})},
		{"### reconcile", optionsIn(t, "reconcile {", "}"), fieldsOf(Reconcile{}, LookupRequest{}, ReconcileAnswer{})},
		{"### store bolt", nil, fieldsOf(BoltStore{})},
		{"### store redis", optionsIn(t, "store redis redis://h {", "}"), fieldsOf(RedisStore{}, RedisSentinel{})},
		{"#### tls", optionsIn(t, "store redis redis://h {\ntls {", "}\n}"), fieldsOf(RedisTLS{})},
		{"#### durability", optionsIn(t, "store redis redis://h {\ndurability {", "}\n}"), fieldsOf(RedisDurability{})},
		{"## Directive idempotency_status", optionsOf(t, statusDirective), fieldsOf(StatusHandler{})},
		{"## Directive idempotency_console", optionsOf(t, consoleDirective), fieldsOf(Console{})},
		{"## Global options", []string{"admin_token"}, fieldsOf(App{})},
	} {
		var saidOptions, saidFields []string
		for _, row := range tableOf(t, page.Section(t, s.heading), "option") {
			if !strings.HasPrefix(row[0], "the ") && row[0] != "directives" {
				saidOptions = append(saidOptions, names(row[0])...)
			}
			saidFields = append(saidFields, names(row[1])...)
		}
		wantSame(t, s.heading+", options", saidOptions, s.options)
		wantSame(t, s.heading+", JSON", saidFields, s.fields)
	}
	checkDefaults(t, page)
	checkGrammar(t, page)
}

func optionsOf(t *testing.T, directive string) []string {
	t.Helper()
	_, err := adapt(":80 {\n" + directive + " {\nno_such_option\n}\n}\n")
	if err == nil || optionsAre.FindStringSubmatch(err.Error()) == nil {
		t.Fatalf("no options in: %v", err)
	}
	return strings.Split(optionsAre.FindStringSubmatch(err.Error())[1], ", ")
}

// short writes a duration as the documentation does.
func short(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// checkDefaults compares the defaults on the page with those of the code.
func checkDefaults(t *testing.T, page pages.Page) {
	t.Helper()
	route, err := (&Handler{Owner: ownerShared}).proxyConfig()
	if err != nil {
		t.Fatal(err)
	}
	size := func(n int64) string {
		return strings.NewReplacer(" ", "", ".0", "").Replace(humanize.IBytes(uint64(n)))
	}
	numbers := func(all ...int) (text string) {
		for _, n := range all {
			text += " " + strconv.Itoa(n)
		}
		return strings.TrimSpace(text)
	}
	for heading, defaults := range map[string]map[string]string{
		"## Directive idempotency": {
			"space": route.Space, "key": route.KeyHeader, "key_format": string(route.KeyFormat),
			"wait": short(route.Wait), "timeout": "60s", "linger": short(route.Linger), "retention": short(route.Retention),
			"lease":            "`timeout` + " + short(route.Lease-route.Timeout),
			"stream_idle":      "60s",
			"max_request_body": size(route.MaxRequestBody), "max_response_body": size(route.MaxResponseBody), "buffer": size(route.Buffer),
			"cache":    size(route.CacheSize) + " " + short(route.CacheTTL),
			"waiters":  numbers(route.WaitersPerJob, route.Waiters),
			"statuses": string(route.Statuses), "max_attempts": numbers(route.MaxAttempts), "failover": failoverOn,
			"store": "bolt",
		},
		"### contract":    {"proof_max_age": short(new(Contract).proofMaxAge()), "on_violation": "unknown"},
		"### reconcile":   {"every": short(proxy.DefaultReconcileEvery), "for": short(proxy.DefaultReconcileFor)},
		"### store redis": {"pipelining": pipeliningOn, "timeout": short(redisstore.DefaultTimeout), "key_prefix": redisstore.DefaultPrefix},
		"#### durability": {"timeout": short(redisstore.DefaultDurabilityTimeout)},
	} {
		seen := 0
		for _, row := range tableOf(t, page.Section(t, heading), "option") {
			want, checked := defaults[strings.Trim(row[0], "`")]
			if !checked {
				continue
			}
			seen++
			if !strings.Contains(row[2], want) {
				t.Errorf("%s: the default of %s is %s, and not %s", heading, row[0], want, row[2])
			}
		}
		if seen != len(defaults) {
			t.Errorf("%s: %d of %d defaults were compared: %v", heading, seen, len(defaults), slices.Sorted(maps.Keys(defaults)))
		}
	}
	for what, is := range map[string]time.Duration{"timeout": route.Timeout, "stream_idle": route.StreamIdle} {
		if is != time.Minute {
			t.Errorf("the default of %s is %s, and not 60s", what, is)
		}
	}
}

// checkGrammar compares the block that shows how all is written with the parser.
func checkGrammar(t *testing.T, page pages.Page) {
	t.Helper()
	block := page.Section(t, "## Directive idempotency").Blocks()[0].Text
	within := map[string][]string{}
	var path []string
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0, strings.HasPrefix(words[0], "<"):
		case words[0] == "}":
			path = path[:len(path)-1]
		default:
			if len(path) > 0 {
				within[path[len(path)-1]] = append(within[path[len(path)-1]], words[0])
			}
			if words[len(words)-1] == "{" {
				path = append(path, words[0])
			}
		}
	}
	for name, is := range map[string][]string{
		"idempotency": optionsIn(t, "", ""),
		"fingerprint": optionsIn(t, "fingerprint json {", "}"),
		"contract":    optionsIn(t, "contract x {", "}"),
		"reconcile":   optionsIn(t, "reconcile {", "}"),
	} {
		wantSame(t, "how "+name+" is written", within[name], is)
	}
}

// The names of the modules on the page are those that Caddy knows.
func TestReferencePageModules(t *testing.T) {
	t.Parallel()
	page := pages.Of(t, "..", "docs/reference.md")
	var said, is []string
	for _, found := range regexp.MustCompile("JSON: (?:the app )?`([a-z._]+)`").FindAllStringSubmatch(page.Text, -1) {
		said = append(said, found[1])
	}
	for _, name := range caddy.Modules() {
		ofTests := strings.Contains(name, "idempotency_test") || strings.HasSuffix(name, ".mute")
		if strings.Contains(name, "idempotency") && !strings.HasPrefix(name, "admin.") && !ofTests {
			is = append(is, name)
		}
	}
	wantSame(t, "modules", said, is)
}
