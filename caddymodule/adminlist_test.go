package caddymodule

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// What it costs to list the unknown jobs depends on how many there are, and not
// on how many others.
func TestListingUnknownJobsCostsAccordingToTheirNumber(t *testing.T) {
	const completed, unknown = 100_000, 100
	server := redistest.Start(t)
	fillWithCompleted(t, server.URL(), completed)
	proxy := faultnet.New(t, server.Addr())
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared\nstore redis redis://"+proxy.Addr()))
	load(t, config)
	for n := range unknown {
		makeUnknown(t, fmt.Sprint("u", n))
	}

	commands := func() (n int) {
		for _, count := range proxy.Counts() {
			n += count
		}
		return n
	}
	scans, before := proxy.Count("SCAN"), commands()
	listed, cursor := 0, ""
	for {
		page := ask(t, admin, "GET", "jobs?state=unknown&limit=30&cursor="+url.QueryEscape(cursor), "").page(t)
		listed += len(page.Jobs)
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	cost := commands() - before
	if listed != unknown {
		t.Errorf("%d jobs were listed, want %d", listed, unknown)
	}
	// One read for each, and a few for each page. The sweeper, which looks at the
	// same jobs every few seconds, may do so meanwhile.
	if most := 10 * unknown; cost < unknown || cost > most {
		t.Errorf("listing %d of %d jobs took %d commands, want at most %d", unknown, completed+unknown, cost, most)
	}
	if n := proxy.Count("SCAN") - scans; n != 0 {
		t.Errorf("the whole store was gone through, with %d commands", n)
	}
}

// fillWithCompleted puts completed jobs into a Redis, straight under the names
// that the store would give them.
func fillWithCompleted(t *testing.T, serverURL string, n int) {
	t.Helper()
	options, err := redis.ParseURL(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	now := keystore.TimeOf(time.Now())
	const batch = 2000
	for from := 0; from < n; from += batch {
		_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for i := range min(batch, n-from) {
				name := keystore.NameOf("main", "somebody", fmt.Sprint(from+i))
				token := keystore.NewToken()
				job := keystore.NewJob(keystore.Job{
					Name: name, ID: keystore.NewJobID(name), Space: "main", Owner: keystore.OwnerDigest("somebody"), KeySent: fmt.Sprint(from + i),
					Request: keystore.RequestInfo{Method: "POST", Path: "/pay"}, Created: now, Retention: time.Hour,
				}, keystore.NewAttempt{Token: token, At: now, Lease: time.Minute, Listen: time.Minute})
				job = job.Report(keystore.Report{Token: token, Outcome: keystore.OutcomeFinal, At: now, Response: &keystore.Response{Status: 200}}).Next
				job.WriteID = keystore.NewWriteID()
				record, err := keystore.EncodeRecord(job)
				if err != nil {
					return err
				}
				pipe.Set(t.Context(), redisstore.RecordKey(redisstore.DefaultPrefix, name), record, time.Hour)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if size, err := client.DBSize(t.Context()).Result(); err != nil || size != int64(n) {
		t.Fatalf("%d records are there, %v; want %d", size, err, n)
	}
}
