package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// TestURLErrorsShowNoPassword: whatever is wrong with a URL, its text may hold a
// part of the password.
func TestURLErrorsShowNoPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "localhost:6379", "http://user:hunter2@localhost", "redis://user:hunter2@localhost:port",
		"redis://user:hunter2@localhost/database", "redis://user:hunt%er2@localhost", "redis://user:hun/ter2@localhost",
		"redis://user:hunter2@localhost?hunter=2", "redis://user:hunter2@localhost:6379/1?pool_size=hunter2",
		"user:hunter2", "redis://user:hunter2@\x7flocalhost", "unix://user:hunter2@?db=x",
	} {
		s, err := Open(Options{URL: url})
		if err == nil {
			_ = s.Close()
			t.Errorf("%q was taken", url)
			continue
		}
		if text := err.Error(); strings.Contains(text, "hunt") || strings.Contains(text, "ter2") {
			t.Errorf("%q: the error shows a password: %v", url, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "hunter2")
	for _, url := range []string{
		"redis://:hunter2@" + server.Addr(), "redis://default:hunter2@" + server.Addr() + "/3",
		"unix://default:hunter2@" + server.Socket(), "unix://default:hunter2@" + server.Socket() + "?db=5",
	} {
		s := openAt(t, url)
		mustCreate(t, s, job(s, url))
	}
	for _, url := range []string{"redis://:hunter3@" + server.Addr(), server.URL()} {
		s := openAt(t, url)
		_, _, err := s.Create(contextOf(t), job(s, "k"))
		mustBeUnavailable(t, "create", err, true)
		if strings.Contains(err.Error(), "hunter") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

// TestPrefixesAreApart: two sets of gateways can share a server.
func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	addr := miniredis.RunT(t).Addr()
	one := openAt(t, "redis://"+addr)
	two := openAt(t, "redis://"+addr, func(o *Options) { o.Prefix = "two:" })
	j := mustCreate(t, one, job(one, "k"))
	mustIndex(t, one, j)
	mustCreate(t, two, job(two, "k"))
	if got := mustList(t, two); len(got) != 0 {
		t.Errorf("got %v from the other prefix's index", got)
	}
}

// TestServerWithoutSetNXGet: servers before Redis 7.0 refuse the native claim.
// That is noticed once, and remembered.
func TestServerWithoutSetNXGet(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		f := answer("ERR syntax error")
		f.Command = "set"
		proxy.Inject(f)
		s := openAt(t, "redis://"+proxy.Addr())
		j := mustCreate(t, s, job(s, "k"))
		mustCreate(t, s, j)
		present, created, err := s.Create(contextOf(t), job(s, "k"))
		if err != nil || created || present == nil || present.WriteID != j.WriteID {
			t.Errorf("create: got %v, %t, %v; want the record that is there", present, created, err)
		}
		mustCreate(t, s, completed(s, job(s, "with an expiry"), []byte("paid")))
		if n := proxy.Count("set"); n != 1 {
			t.Errorf("the native claim was tried %d times, want once", n)
		}
	})
	t.Run("conformance", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t testing.TB) storetest.Backend {
			b := onMiniredis(t)
			open := b.Open
			b.Open = func(t testing.TB) keystore.Store {
				s := open(t)
				s.(*Store).noSetGet.Store(true)
				return s
			}
			return b
		})
	})
}

// TestClock: leases and expiries are judged by the server's clock.
func TestClock(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	ahead := 3 * time.Hour
	m.SetTime(time.Now().Add(ahead))
	s := openAt(t, "redis://"+m.Addr())
	eventually(t, "the clock is sampled", func() bool { _, known := s.ClockOffset(); return known })
	const near = time.Minute // the miniredis clock stands still meanwhile
	if off := time.Until(s.Now().Std()) - ahead; off.Abs() > near {
		t.Errorf("the store's clock is %s off the server's", off)
	}
	if offset, _ := s.ClockOffset(); (offset - ahead).Abs() > near {
		t.Errorf("got an offset of %s, want about %s", offset, ahead)
	}
	j := mustCreate(t, s, job(s, "k"))
	mustSwap(t, s, j.WriteID, completed(s, j, nil))
	if ttl := m.TTL(recordKey(j.Name)); ttl > time.Hour || ttl < 58*time.Minute {
		t.Errorf("the record lives for %s, want its retention", ttl)
	}
}

// TestErrorsQuoteNothing: servers repeat what they were sent.
func TestErrorsQuoteNothing(t *testing.T) {
	t.Parallel()
	f := fateOfReply("ERR unknown command 'SET', with args beginning with: 'idempotency:j:' 'alice' ", false)
	if strings.Contains(f.text, "alice") || !strings.Contains(f.text, "unknown command") {
		t.Errorf("got %q", f.text)
	}
	if f = fateOfReply("ERR "+strings.Repeat("x", 1000), true); len(f.text) > 200 {
		t.Errorf("got %d bytes of text", len(f.text))
	}
}

// TestCloseEndsCalls: closing does not wait for a server that says nothing, and
// what was in progress fails with the right errors.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		parked := proxy.Park("set")
		failed := make(chan error, 1)
		go func() {
			_, _, err := s.Create(contextOf(t), job(s, "k"))
			failed <- err
		}()
		<-parked.Arrived()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		err := <-failed
		if !errors.Is(err, keystore.ErrClosed) || !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("create: got %v, want closed, and that nobody knows", err)
		}
		_, _, err = s.Create(contextOf(t), job(s, "k"))
		if !errors.Is(err, keystore.ErrClosed) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("create afterwards: got %v, want closed, and that nothing was done", err)
		}
	})
}
