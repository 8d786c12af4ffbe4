package caddymodule

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// The process ends: what runs comes to its end, what waits is sent away, and
// nothing new begins.
func TestDrainingLetsAttemptsEnd(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, protect(u, "owner shared\nwait 1h")))
	first, waiter := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- insist(t, "/hold", "k") }()
	<-u.entered
	go func() { waiter <- insist(t, "/hold", "k") }()

	beginDraining(0, patience)
	t.Cleanup(func() { exit.deadline = time.Time{} })
	// It doesn't matter here whether it came to wait, or came too late for that.
	if a := <-waiter; a.code() != "in-flight" && a.code() != "store-unavailable" {
		t.Errorf("repetition: %+v", a)
	}
	if a := post(t, "/pay", "new"); a.status != 503 || a.code() != "store-unavailable" || u.executions("new") != 0 {
		t.Errorf("new request: %+v", a)
	}
	if a := post(t, "/pay", ""); a.status != 200 {
		t.Errorf("new request without a key: %+v", a)
	}
	finished := make(chan struct{})
	go func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		finishDraining(context.Background())
		close(finished)
	}()
	select {
	case <-finished:
		t.Error("the attempt was not waited for")
	default:
	}
	close(u.release)
	if a := <-first; a.status != 200 {
		t.Errorf("running request: %+v", a)
	}
	<-finished
	if n := openStores(); n != 0 {
		t.Errorf("%d stores are open", n)
	}
}

// What does not come to its end in time is cut and recorded as unknown.
func TestDrainingCutsWhatTakesTooLong(t *testing.T) {
	u := newUpstream(t)
	config := site(t, protect(u, "owner shared"))
	load(t, config)
	first := make(chan answer, 1)
	go func() { first <- insist(t, "/hold", "k") }()
	<-u.entered
	over, cancel := context.WithCancel(context.Background())
	cancel()
	drain(over)
	if a := <-first; a.status != 504 || a.code() != "outcome-unknown" {
		t.Errorf("got %+v", a)
	}
	stop(t)
	load(t, config)
	if a := insist(t, "/hold", "k"); a.status != 504 || a.code() != "outcome-unknown" || u.executions("k") != 1 {
		t.Errorf("after a restart: %+v", a)
	}
	close(u.release)
}

func TestPatienceIsTheGracePeriod(t *testing.T) {
	u := newUpstream(t)
	config := site(t, "handle /a {\n"+protect(u, "owner shared\ntimeout 90s")+"\n}\nhandle {\n"+protect(u, "owner shared")+"\n}")
	patienceOf := func(config string) (delay, grace time.Duration) {
		t.Helper()
		load(t, config)
		ctx := caddy.ActiveContext()
		app, err := ctx.App(appName)
		if err != nil {
			t.Fatal(err)
		}
		return app.(*App).patience()
	}
	if delay, grace := patienceOf(config); delay != 0 || grace != 90*time.Second+exitMargin {
		t.Errorf("without a grace period: %v, %v", delay, grace)
	}
	config = strings.Replace(config, "admin off", "admin off\ngrace_period 7s\nshutdown_delay 3s", 1)
	delay, grace := patienceOf(config)
	if delay != 3*time.Second || grace != 7*time.Second {
		t.Errorf("with a grace period: %v, %v", delay, grace)
	}
	if err := reload(strings.Replace(config, "shutdown_delay 3s", "", 1)); err != nil { // or the test's end is delayed
		t.Fatal(err)
	}
}
