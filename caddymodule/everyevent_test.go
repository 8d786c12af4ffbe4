package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// toldTo returns the first event of each of these names that a subscriber is told of,
// once there are all.
func toldTo(t *testing.T, subscriber string, names ...proxy.EventName) map[string]map[string]any {
	t.Helper()
	got := make(map[string]map[string]any)
	deadline := time.After(patience)
	for len(got) < len(names) {
		select {
		case e := <-toldEvents:
			name := strings.TrimPrefix(e.Name(), eventPrefix)
			if e.subscriber == subscriber && slices.Contains(names, proxy.EventName(name)) && got[name] == nil {
				got[name] = e.Data
			}
		case <-deadline:
			t.Fatalf("told was only of %v, want %v", slices.Sorted(maps.Keys(got)), names)
		}
	}
	return got
}

// The subscribers of Caddy's events are told of every event, with all that the page
// lists, and with nothing of a key, an owner or a body.
func TestEveryEventIsSeen(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner {http.request.header.X-User}\nspace money\nlabel {http.request.header.X-Order}\ntimeout 500ms"))
	load(t, subscribing(config, "every"))
	resolve := func(id, decision string) {
		t.Helper()
		if a := ask(t, admin, "POST", "jobs/"+id+"/resolve", `{"actor":"anna","evidence":"the journal",`+decision+`}`); a.status != 200 {
			t.Errorf("got %+v", a)
		}
	}
	paths := []string{"/hold/late", "/hold/contradicted", "/die"}
	ids := make([]string, len(paths))
	var all sync.WaitGroup
	for i, path := range paths {
		all.Go(func() {
			a := insist(t, path, "very-secret"+path, "X-User", "alice", "X-Order", "o-17")
			if a.code() != proxy.CodeOutcomeUnknown {
				t.Errorf("%s: got %+v", path, a)
			}
			ids[i] = a.header.Get("Idempotency-Job")
		})
	}
	all.Wait()
	resolve(ids[1], `"as":"cancelled"`)
	close(u.release)
	resolve(ids[2], `"as":"succeeded","response":{"status":200,"body":"done"}`)
	eventually(t, "its attempt is over, and the job can be forgotten", func() bool {
		return ask(t, admin, "POST", "jobs/"+ids[2]+"/forget", `{"actor":"anna"}`).status == 200
	})
	told := toldTo(t, "every", proxy.EventOutcomeUnknown, proxy.EventResolved, proxy.EventLateResult, proxy.EventContradicted, proxy.EventForgotten)

	server, u := redistest.Start(t), newUpstream(t)
	load(t, subscribing(site(t, protect(u, "owner shared\nspace money\nlabel {http.request.header.X-Order}\nstore redis "+server.URL())), "loss"))
	answered := make(chan answer)
	go func() { answered <- insist(t, "/hold", "very-secret", "X-Order", "o-17") }()
	<-u.entered
	if _, err := server.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	close(u.release)
	if a := <-answered; a.status != 200 {
		t.Errorf("got %+v", a)
	}
	maps.Copy(told, toldTo(t, "loss", proxy.EventClaimLost))

	p := newProving(t, safeCase, "", "")
	if err := reload(subscribing(p.config, "proofs")); err != nil {
		t.Fatal(err)
	}
	p.failsOver("very-secret", false)
	p.prove(onlyBackup)
	p.fallback.say(wrongMeaning)
	p.prove(onlyBackup)
	maps.Copy(told, toldTo(t, "proofs", proxy.EventFallbackUnproven, proxy.EventProven, proxy.EventUnproven))

	wantSame(t, "events", slices.Collect(maps.Keys(told)), eventNames())
	for name, want := range map[proxy.EventName]string{
		proxy.EventOutcomeUnknown:   "money unknown POST o-17 1 unknown",
		proxy.EventResolved:         "money open POST o-17 1 cancelled; resolved as cancelled by anna",
		proxy.EventLateResult:       "money completed POST o-17 1 succeeded; answered with status 200",
		proxy.EventContradicted:     "money open POST o-17 1 discarded; answered with status 200",
		proxy.EventClaimLost:        "money completed POST o-17 1 succeeded; the store had forgotten it",
		proxy.EventForgotten:        "money completed POST o-17 1 succeeded; forgotten by anna",
		proxy.EventFallbackUnproven: "payments running POST  1 starting; provider backup has no living proof of its present configuration and contract; run: caddy idempotency prove",
		proxy.EventProven:           "_proof completed  proof of backup 1 succeeded; provider backup has passed every case",
		proxy.EventUnproven:         "_proof completed  proof of backup 1 succeeded; provider backup has not passed every case",
	} {
		d := told[string(name)]
		got := fmt.Sprintf("%v %v %v %v %v %v; %v", d["space"], d["state"], d["method"], d["label"], d["attempt"], d["attempt_state"], d["reason"])
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s tells %q, want %q", name, got, want)
		}
	}
	var listed []string
	for _, row := range tableOf(t, pages.Of(t, "..", observabilityPage).Section(t, "## Events"), "data") {
		listed = append(listed, names(row[0])...)
	}
	said := make(map[string]bool)
	for name, data := range told {
		wantSame(t, "the data of "+name, slices.Clone(listed), slices.Collect(maps.Keys(data)))
		for field, value := range data {
			said[field] = said[field] || value != ""
		}
		if text := fmt.Sprint(data); strings.Contains(text, "very-secret") || strings.Contains(text, "alice") || strings.Contains(text, "amount") {
			t.Errorf("%s tells %s", name, text)
		}
	}
	for field, some := range said {
		if !some {
			t.Errorf("no event tells %s", field)
		}
	}
}

func eventNames() (all []string) {
	for _, name := range proxy.EventNames() {
		all = append(all, string(name))
	}
	return all
}
