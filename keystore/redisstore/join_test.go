package redisstore

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// TestFirstSlotOfANewMaster: a cluster grows. As long as the first slot of a new master
// is on its way there, the list of who has which slot does not have that master: only
// the redirections name it.
func TestFirstSlotOfANewMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 1)
	s, late := openWith(t, byURL(cluster.URL())), openWith(t, byURL(cluster.URL()))
	j := mustCreate(t, s, job(s, "k"))
	j = mustSwap(t, s, j.WriteID, renewed(j)) // the script is known there, and not to the new one
	mustGet(t, late, j.Name)
	finish := cluster.Migrating(s.recordKey(j.Name), cluster.Join())

	swap := func(when string, s *Store, present *keystore.Job) *keystore.Job {
		t.Helper()
		if got, err := s.Get(contextOf(t), present.Name); err != nil || got == nil || got.WriteID != present.WriteID {
			t.Fatalf("%s: get: got %v, %v", when, got, err)
		}
		next := mustSwap(t, s, present.WriteID, renewed(present))
		many := keystore.Swap{Expected: next.WriteID, Job: renewed(next)}
		if r := s.SwapMany(contextOf(t), []keystore.Swap{many})[0]; !r.Swapped || r.Err != nil {
			t.Fatalf("%s: among many: got %+v", when, r)
		}
		return many.Job
	}
	j = swap("on its way", s, j)
	if page, next, err := s.Scan(contextOf(t), "", 10); err != nil || next != "" {
		t.Errorf("scan: got %d jobs, %q, %v", len(page), next, err)
	}
	finish()
	j = swap("arrived", s, j)
	swap("arrived, and has not been asked for meanwhile", late, j)
}

func TestRedirectionsNameAddresses(t *testing.T) {
	t.Parallel()
	for named, want := range map[string]string{
		"10.0.0.1:6379": "10.0.0.1:6379", "redis-1:6379": "redis-1:6379", "::1:6379": "[::1]:6379", "[::1]:6379": "[::1]:6379", ":6379": ":6379",
	} {
		if got := fateOfReply("ASK 1 "+named, false).to.addr; got != want {
			t.Errorf("%s: got %s", named, got)
		}
	}
}

// An address on the server's own machine is somebody else's on ours.
func TestRedirectionToTheServersOwnMachine(t *testing.T) {
	t.Parallel()
	made := map[string]bool{}
	for known, want := range map[string]bool{"10.0.0.1:6379": false, "127.0.0.2:6379": true} {
		sv := &servers{nodes: map[string]*node{known: {}}, named: map[string]*node{}, name: func(addr string) *node {
			made[addr] = true
			return &node{}
		}}
		for _, addr := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1", ":1"} {
			if got := sv.to(hop{addr: addr}) != nil; got != want {
				t.Errorf("with %s, to %s: %t", known, addr, got)
			}
		}
		if sv.to(hop{addr: "10.0.0.2:1"}) == nil || sv.to(hop{}) != nil {
			t.Errorf("with %s: another machine is not found, or none is", known)
		}
	}
	if len(made) != 5 {
		t.Errorf("made %v", made)
	}
}

// TestAskingRefused: that a server does not let itself be asked, for want of a right or
// for being no cluster's, says nothing of the command, which it may have executed.
func TestAskingRefused(t *testing.T) {
	t.Parallel()
	s := openAt(t, redistest.Start(t).URL())
	n := *s.servers.one
	n.asking = true
	j := mustCreate(t, s, job(s, "k"))
	next := renewed(j)
	args := []any{j.WriteID.String(), must(keystore.EncodeRecord(next)), 0, s.channel(), ""}
	reply, err := n.run(contextOf(t), swapScript, s.recordKey(j.Name), args...)
	if got := mustGet(t, s, j.Name); got.WriteID != next.WriteID || reply != int64(1) || err != nil {
		t.Errorf("it was done: %t; and the answer is %v, %v", got.WriteID == next.WriteID, reply, err)
	}
}
