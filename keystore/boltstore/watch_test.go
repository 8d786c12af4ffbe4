package boltstore

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j, other := claimed("k", s.Now()), claimed("other", s.Now())
	hint, stop := s.Watch(t.Context(), j.Name, keystore.WriteID{})
	mustCreate(t, s, other)
	select {
	case <-hint:
		t.Error("a hint although nothing has changed")
	default:
	}
	mustCreate(t, s, j)
	<-hint // the writer gives it after it has answered
	second, stopSecond := s.Watch(t.Context(), j.Name, keystore.WriteID{})
	<-second // at once: the record is another one
	third, stopThird := s.Watch(t.Context(), j.Name, j.WriteID)
	next := failed(j, s.Now())
	mustSwap(t, s, j, next)
	for _, hint := range []<-chan struct{}{hint, second, third} {
		<-hint
	}
	for _, stop := range []func(){stop, stop, stopSecond, stopThird} {
		stop()
	}
	if len(s.watchers.byName) != 0 {
		t.Errorf("%d names are still watched", len(s.watchers.byName))
	}
}
