package proxy

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// errShort is what a store says of a write that too few copies have.
var errShort = errors.Join(keystore.ErrUnavailable, keystore.ErrNotDurable)

func alwaysFor(op string, err error) func(string) error {
	return func(got string) error {
		if got == op {
			return err
		}
		return nil
	}
}

// A claim that is not durable is not dispatched, and the record comes to say so.
func TestRED01ClaimShortOfAcknowledgements(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, alwaysFor("create", errShort))
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		time.Sleep(5 * time.Second)
		if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptFailed || a.Reason != keystore.ReasonNeverDispatched {
			t.Errorf("the claim's attempt is %v: %s", a.State, a.Reason)
		}
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

// The same for the claim of a next attempt.
func TestRED01RetryShortOfAcknowledgements(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, alwaysFor("create", errShort))
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.mem.fail(nil, nil)
		time.Sleep(5 * time.Second)
		f.mem.fail(nil, alwaysFor("swap", errShort))
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		time.Sleep(10 * time.Second)
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

// A commit that is not durable within a second is not called recorded; it is so as
// soon as the store confirms it. That it can be read back confirms nothing.
func TestRED01CommitShortOfAcknowledgements(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, alwaysFor("swap", errShort))
		started := time.Now()
		r := f.do(request{}).wantBody(t, 200, "execution 1", false)
		if r.Header().Get(HeaderRecorded) != "false" {
			t.Errorf("headers %v", r.Header())
		}
		if took := time.Since(started); took < answerTime {
			t.Errorf("answered after %v", took)
		}
		f.mem.fail(nil, nil)
		time.Sleep(10 * time.Second)
		if f.gateway.doubted.has(f.mem.job().Name) {
			t.Error("the commit was never confirmed")
		}
		f.wantExecutions(1)
	})
}

func TestRED01CommitConfirmedInTime(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, onceFor("swap", 1, errShort))
		if r := f.do(request{}).wantBody(t, 200, "execution 1", false); r.Header().Get(HeaderRecorded) != "" {
			t.Error("the commit was confirmed in time, and is called not recorded")
		}
		if f.gateway.doubted.has(f.mem.job().Name) {
			t.Error("the commit was never confirmed")
		}
	})
}

// A commit that may be there is looked for before anything is written again: as long
// as a replica is away every write is in doubt, and each would leave a body of its own
// behind.
func TestCommitInDoubtIsWrittenOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, alwaysFor("swap", errShort))
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		time.Sleep(time.Minute)
		writes, looks := f.mem.calls("swap"), f.mem.calls("get")
		if writes < 10 || writes > looks+1 {
			t.Errorf("%d writes after %d looks", writes, looks)
		}
		f.mem.fail(nil, nil)
		time.Sleep(10 * time.Second)
		if f.gateway.doubted.has(f.mem.job().Name) {
			t.Error("the commit was never confirmed")
		}
	})
}

func TestDoubtsAreBounded(t *testing.T) {
	t.Parallel()
	var d doubts
	for i := range uint32(maxDoubts + 10) {
		var name keystore.Name
		binary.BigEndian.PutUint32(name[:], i)
		d.add(name)
	}
	if len(d.names) != maxDoubts {
		t.Errorf("%d names", len(d.names))
	}
}
