package redisstore

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// TestBodyLost: a body that is gone, or is not the one that was written, is not
// kept. The job stays completed, and nobody executes it again.
func TestBodyLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		for what, lose := range map[string]func(t *testing.T, key string){
			"evicted": func(t *testing.T, key string) { rawClient(t, "redis://"+addr).Del(contextOf(t), key) },
			"shortened": func(t *testing.T, key string) {
				rawClient(t, "redis://"+addr).Set(contextOf(t), key, make([]byte, 100), 0)
			},
			"changed": func(t *testing.T, key string) { rawClient(t, "redis://"+addr).SetRange(contextOf(t), key, 7, "x") },
			"replaced by a list": func(t *testing.T, key string) {
				rawClient(t, "redis://"+addr).Del(contextOf(t), key)
				rawClient(t, "redis://"+addr).LPush(contextOf(t), key, "x")
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				s := openAt(t, "redis://"+addr)
				j := mustCreate(t, s, job(s, what))
				done := mustSwap(t, s, j.WriteID, completed(s, j, bytes.Repeat([]byte("a"), 40<<10)))
				lose(t, s.bodyKey(done.Name, keystore.Token(done.WriteID)))

				check := func(how string, got *keystore.Job, err error) {
					t.Helper()
					if err != nil || got == nil || got.State(s.Now()) != keystore.JobCompleted {
						t.Fatalf("%s: got %v, %v; want the completed job", how, got, err)
					}
					if r := got.Result; !r.NotKept || r.Body != nil || r.Status != 200 || r.Size != 40<<10 {
						t.Errorf("%s: got status %d, size %d, %d bytes, not kept %t", how, r.Status, r.Size, len(r.Body), r.NotKept)
					}
				}
				got, err := s.Get(contextOf(t), j.Name)
				check("get", got, err)
				got, _, err = s.Create(contextOf(t), job(s, what))
				check("create", got, err)
				got, _, err = s.Swap(contextOf(t), j.WriteID, completed(s, j, nil))
				check("swap", got, err)
			})
		}
	})
}

// TestBodyUnreachable: that a body can't be read now does not mean that it is
// not there.
func TestBodyUnreachable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		j := mustCreate(t, s, job(s, "k"))
		mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 40<<10)))
		remove := proxy.Inject(faultnet.Fault{Command: "get", Do: faultnet.CutBefore})
		present, created, err := s.Create(contextOf(t), job(s, "k"))
		if present != nil || created || !errors.Is(err, keystore.ErrUnavailable) {
			t.Errorf("create: got %v, %t, %v", present, created, err)
		}
		remove()
		if got := mustGet(t, s, j.Name); got.Result.NotKept {
			t.Error("the body was given up")
		}
	})
}

// TestBodyNotWritten: without the body the record is not written either, and it
// is known that it is not.
func TestBodyNotWritten(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		j := mustCreate(t, s, job(s, "k"))
		proxy.Inject(faultnet.Fault{Command: "set", Do: faultnet.LoseReplyAndCut})
		_, _, err := s.Swap(contextOf(t), j.WriteID, completed(s, j, make([]byte, 40<<10)))
		mustBeUnavailable(t, "swap", err, true)
		if got := mustGet(t, s, j.Name); got.WriteID != j.WriteID {
			t.Error("the record was written")
		}
	})
}

// TestKeptBody: what an attempt keeps has an expiry of its own, since its job has
// none, and goes soon after a decision. Without it the job is as unknown as before.
func TestKeptBody(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := openAt(t, "redis://"+m.Addr())
	for _, as := range []keystore.AttemptState{keystore.AttemptSucceeded, keystore.AttemptFailed} {
		j := mustCreate(t, s, job(s, as.String()))
		body := bytes.Repeat([]byte("a"), 40<<10)
		next := j.Report(keystore.Report{
			Token: j.Attempts[0].Token, Outcome: keystore.OutcomeUnknown, At: s.Now(),
			Kept: &keystore.Response{Status: 200, Body: body, Size: int64(len(body))},
		}).Next
		next.WriteID = keystore.NewWriteID()
		mustSwap(t, s, j.WriteID, next)
		key := s.bodyKey(next.Name, keptToken(next.WriteID, j.Attempts[0].Token))
		if ttl := m.TTL(key); ttl < keptTime {
			t.Errorf("the kept body lives for %s", ttl)
		}
		read := mustGet(t, s, j.Name)
		if !bytes.Equal(read.Attempts[0].Kept.Body, body) {
			t.Fatal("the body is not the one that was kept")
		}
		decided, err := read.Resolve(j.Attempts[0].Token, keystore.Resolution{State: as, At: s.Now(), Kept: as == keystore.AttemptSucceeded}, nil)
		if err != nil {
			t.Fatal(err)
		}
		decided.WriteID = keystore.NewWriteID()
		mustSwap(t, s, read.WriteID, decided)
		if ttl := m.TTL(key); ttl <= 0 || ttl > bodyMargin {
			t.Errorf("after the decision the kept body lives for %s", ttl)
		}
		if got := mustGet(t, s, j.Name); as == keystore.AttemptSucceeded && !bytes.Equal(got.Result.Body, body) {
			t.Error("the result is not the body that was kept")
		}
	}

	j := mustCreate(t, s, job(s, "lost"))
	next := j.Report(keystore.Report{
		Token: j.Attempts[0].Token, Outcome: keystore.OutcomeUnknown, At: s.Now(),
		Kept: &keystore.Response{Status: 200, Body: make([]byte, 40<<10), Size: 40 << 10},
	}).Next
	next.WriteID = keystore.NewWriteID()
	mustSwap(t, s, j.WriteID, next)
	m.Del(s.bodyKey(next.Name, keptToken(next.WriteID, j.Attempts[0].Token)))
	if got := mustGet(t, s, j.Name); got.State(s.Now()) != keystore.JobUnknown || !got.Attempts[0].Kept.NotKept {
		t.Errorf("got a job that is %s and keeps %+v", got.State(s.Now()), got.Attempts[0].Kept)
	}
}

// TestBodyOutlivesRecord: whoever has just read a record finds its body; and one
// whose record was never written does not stay for ever.
func TestBodyOutlivesRecord(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := openAt(t, "redis://"+m.Addr())
	j := mustCreate(t, s, job(s, "k"))
	done := mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 40<<10)))
	record, body := m.TTL(recordKey(j.Name)), m.TTL(s.bodyKey(done.Name, keystore.Token(done.WriteID)))
	if record > time.Hour || record < 59*time.Minute {
		t.Errorf("the record lives for %s, want its retention", record)
	}
	if body < record+59*time.Minute || body > record+61*time.Minute {
		t.Errorf("the body lives for %s, want an hour more than the record's %s", body, record)
	}
	_, swapped, err := s.Swap(contextOf(t), j.WriteID, completed(s, j, make([]byte, 50<<10)))
	if swapped || err != nil {
		t.Fatalf("swap: got %t, %v", swapped, err)
	}
	for _, key := range m.Keys() {
		if key != recordKey(j.Name) && m.TTL(key) == 0 {
			t.Errorf("%s stays for ever", key)
		}
	}
}

// TestForgottenBody: who has a job forgotten wants its answer gone as well, and not
// when it would have expired.
func TestForgottenBody(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s, admin := openAt(t, "redis://"+addr), rawClient(t, "redis://"+addr)
		j := mustCreate(t, s, job(s, "k"))
		done := mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 50<<10)))
		read := mustGet(t, s, j.Name)
		if _, swapped, err := s.Swap(contextOf(t), j.WriteID, dropped(s, read)); swapped || err != nil {
			t.Fatalf("dropped, although another record was expected: %t, %v", swapped, err)
		}
		if got := mustGet(t, s, j.Name); got.Result.NotKept {
			t.Fatal("the body has gone, although the record has not")
		}
		mustSwap(t, s, done.WriteID, dropped(s, read))
		eventually(t, "nothing is left", func() bool { return len(admin.Keys(contextOf(t), "*").Val()) == 0 })
	})
}
