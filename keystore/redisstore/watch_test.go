package redisstore

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// neverPoll leaves hints to the channel alone.
func neverPoll(s *Store) *Store {
	s.watchers.every = time.Hour
	return s
}

func drain(hint <-chan struct{}) {
	select {
	case <-hint:
	default:
	}
}

// subscribed waits until hints can come, and takes the one that says so.
func subscribed(t *testing.T, s *Store) {
	t.Helper()
	j := mustCreate(t, s, job(s, "subscribed"))
	hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
	defer stop()
	mustHint(t, hint)
}

// TestHintsByChannel: hints come by the channel, without anybody looking.
func TestHintsByChannel(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s, other := neverPoll(openAt(t, "redis://"+addr)), openAt(t, "redis://"+addr)
		subscribed(t, s)
		j := mustCreate(t, s, job(s, "k"))
		for range 5 {
			hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			next := *j
			next.WriteID = keystore.NewWriteID()
			mustSwap(t, other, j.WriteID, &next)
			mustHint(t, hint)
			stop()
			j = &next
		}
	})
}

// TestHintOnlyWhereSomebodyWaits: a write publishes nothing if nobody waits, and
// a hint once given is not given again.
func TestHintOnlyWhereSomebodyWaits(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s, other := neverPoll(openAt(t, "redis://"+addr)), openAt(t, "redis://"+addr)
		listener := rawClient(t, "redis://"+addr).Subscribe(contextOf(t), s.channel())
		if _, err := listener.Receive(contextOf(t)); err != nil {
			t.Fatal(err)
		}
		quiet := mustCreate(t, s, job(s, "quiet"))
		quiet = mustSwap(t, other, quiet.WriteID, completed(other, quiet, nil))
		j := mustCreate(t, s, job(s, "waited for"))
		_, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		done := mustSwap(t, other, j.WriteID, completed(other, j, nil))
		noted := *done
		noted.WriteID = keystore.NewWriteID()
		mustSwap(t, other, done.WriteID, &noted)
		last := mustCreate(t, s, job(s, "last"))
		_, stop = s.Watch(contextOf(t), last.Name, last.WriteID)
		defer stop()
		mustSwap(t, other, last.WriteID, completed(other, last, nil))

		for _, want := range []*keystore.Job{j, last} {
			m, err := listener.ReceiveMessage(contextOf(t))
			if err != nil || m.Payload != want.Name.String() {
				t.Fatalf("got %v, %v; want the hint for %s", m, err, want.KeySent)
			}
		}
		_ = quiet
	})
}

// TestHintsAfterReconnecting: hints that were published while the connection was
// down are lost; that it is back is a hint to everybody.
func TestHintsAfterReconnecting(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := neverPoll(openAt(t, "redis://"+proxy.Addr()))
		subscribed(t, s)
		j := mustCreate(t, s, job(s, "k"))
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		drain(hint)
		proxy.CutAll()
		mustHint(t, hint)
	})
}

// TestHintsByLooking: a record that changes without any hint is noticed all the
// same, by all who wait for it, and by one who waits for a record to appear.
func TestHintsByLooking(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		admin := rawClient(t, "redis://"+addr)
		subscribed(t, s)
		j := mustCreate(t, s, job(s, "k"))
		awaited := job(s, "appears")
		var hints []<-chan struct{}
		for range 3 {
			hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			t.Cleanup(stop)
			hints = append(hints, hint)
		}
		hint, stop := s.Watch(contextOf(t), awaited.Name, keystore.WriteID{})
		defer stop()
		hints = append(hints, hint)
		for _, hint := range hints {
			drain(hint)
		}
		for _, key := range []string{recordKey(j.Name), recordKey(awaited.Name)} {
			if err := admin.Set(contextOf(t), key, "another record", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, hint := range hints {
			mustHint(t, hint)
		}
	})
}

// TestWatchingNothingMakesNoRecord: marking a record that has gone must not make
// one.
func TestWatchingNothingMakesNoRecord(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		j := job(s, "k")
		for _, seen := range []keystore.WriteID{{}, keystore.NewWriteID()} {
			_, stop := s.Watch(contextOf(t), j.Name, seen)
			stop()
		}
		if got, err := s.Get(contextOf(t), j.Name); got != nil || err != nil {
			t.Errorf("got %v, %v; want no record", got, err)
		}
	})
}

// TestWatchCostsOneCommandPerRecord: those who wait for one record share its mark.
func TestWatchCostsOneCommandPerRecord(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := neverPoll(openAt(t, "redis://"+proxy.Addr()))
		subscribed(t, s)
		j := mustCreate(t, s, job(s, "k"))
		before := proxy.Count("evalsha")
		for range 50 {
			_, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			t.Cleanup(stop)
		}
		if n := proxy.Count("evalsha") - before; n != 1 {
			t.Errorf("50 watchers of one record marked it %d times", n)
		}
	})
}

// TestPollingEnds: nobody watches, nobody looks.
func TestPollingEnds(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		s.watchers.every = 10 * time.Millisecond
		polls := func() bool {
			s.watchers.mu.Lock()
			defer s.watchers.mu.Unlock()
			return s.watchers.polling
		}
		for range 2 { // and begins again
			j := job(s, "k")
			_, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			if !polls() {
				t.Fatal("somebody watches, and nobody looks")
			}
			stop()
			eventually(t, "polling ends", func() bool { return !polls() })
		}
	})
}
