package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// TestCL09LostClaimReply: the server executes a write, and its reply is lost.
// Whoever sends it again, this store or the client below it, meets what it has
// written itself. That is a success.
func TestCL09LostClaimReply(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		for sender, change := range map[string]func(*Options){
			"sent again":               func(*Options) {},
			"sent again by the client": func(o *Options) { o.Resends, o.ClientRetries = -1, 3 },
		} {
			for _, lose := range []faultnet.Action{faultnet.LoseReplyAndCut, faultnet.LoseReplyAndHang} {
				t.Run(fmt.Sprint(sender, lose), func(t *testing.T) {
					t.Parallel()
					proxy := faultnet.New(t, addr)
					s := openAt(t, "redis://"+proxy.Addr(), change, func(o *Options) { o.Timeout = 300 * time.Millisecond })
					// A script is sent by its digest first: that one has to be known.
					warm := mustCreate(t, s, job(s, "warm"+t.Name()))
					mustSwap(t, s, warm.WriteID, completed(s, warm, nil))

					proxy.Inject(faultnet.Fault{Command: "set", Do: lose, Times: 1})
					j := mustCreate(t, s, job(s, t.Name()))
					proxy.Inject(faultnet.Fault{Command: "evalsha", Do: lose, Times: 1})
					done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
					if got := mustGet(t, s, j.Name); got.WriteID != done.WriteID {
						t.Errorf("got the record of write %s, want that of %s", got.WriteID, done.WriteID)
					}
				})
			}
		}
	})
}

// TestForgetLostReply: a deletion whose reply was lost finds nothing when it is
// sent again. That is what it wanted.
func TestForgetLostReply(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		j := mustCreate(t, s, job(s, "k"))
		done := mustSwap(t, s, j.WriteID, completed(s, j, nil))
		dropped := *done
		dropped.Expires, dropped.WriteID = s.Now(), keystore.NewWriteID()
		proxy.Inject(faultnet.Fault{Command: "evalsha", Do: faultnet.LoseReplyAndCut, Times: 1})
		mustSwap(t, s, done.WriteID, &dropped)
	})
}

// TestParkedClaim: a claim is stuck in the network, its sender gives up and
// writes down that it was never dispatched, and then the claim arrives.
func TestParkedClaim(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s, other := openAt(t, "redis://"+proxy.Addr()), openAt(t, "redis://"+addr)
		j := job(s, "k")
		parked := proxy.Park("set")
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-parked.Arrived()
			cancel()
		}()
		_, created, err := s.Create(ctx, j)
		if created {
			t.Fatal("created: the server has not even seen it")
		}
		mustBeUnavailable(t, "create", err, false)

		next, create := keystore.AbortedClaim{Token: j.Attempts[0].Token, Written: j}.Next(nil, other.Now())
		if !create {
			t.Fatal("the abort has nothing to create")
		}
		next.WriteID = keystore.NewWriteID()
		mustCreate(t, other, next)
		parked.Release()
		<-parked.Answered()
		if got := mustGet(t, other, j.Name); got.WriteID != next.WriteID {
			t.Error("the claim that was given up has taken effect")
		}
	})
}

// TestRED14CancelledCompletion: whoever stops waiting for a write does not stop
// the write. Said again, it was done already.
func TestRED14CancelledCompletion(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		warm := mustCreate(t, s, job(s, "warm"))
		mustSwap(t, s, warm.WriteID, completed(s, warm, nil))

		j := mustCreate(t, s, job(s, "k"))
		done := completed(s, j, []byte("paid"))
		parked := proxy.Park("evalsha")
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-parked.Arrived()
			cancel()
		}()
		_, _, err := s.Swap(ctx, j.WriteID, done)
		mustBeUnavailable(t, "swap", err, false)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("swap: got %v, want the context's error in it", err)
		}
		parked.Release()
		<-parked.Answered()
		if got := mustGet(t, s, j.Name); got.WriteID != done.WriteID {
			t.Error("the write was not done")
		}
		mustSwap(t, s, j.WriteID, done)
	})
}

// TestContextDeadline: a server that says nothing holds nobody longer than they
// want to wait.
func TestContextDeadline(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL(), func(o *Options) { o.Timeout = time.Second })
	j := mustCreate(t, s, job(s, "k"))
	server.Freeze()
	defer server.Thaw()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, _, err := s.Swap(ctx, j.WriteID, completed(s, j, nil))
	mustBeUnavailable(t, "swap", err, false)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("swap: got %v, want the context's error in it", err)
	}
}

// TestNotApplied: what can be known of a write that failed.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	once := func(o *Options) { o.Resends, o.Timeout = -1, 300*time.Millisecond }
	again := func(o *Options) { o.Timeout = 300 * time.Millisecond }
	client := func(o *Options) { o.Resends, o.ClientRetries, o.Timeout = -1, 2, 300*time.Millisecond }
	for _, c := range []struct {
		what       string
		change     func(*Options)
		fault      faultnet.Fault
		create     bool // certainly not applied
		swap       bool
		executable bool // nothing fails in the end
	}{
		{what: "reply lost", change: once, fault: faultnet.Fault{Do: faultnet.LoseReplyAndCut}},
		{what: "reply lost, sent again", change: again, fault: faultnet.Fault{Do: faultnet.LoseReplyAndCut}},
		{what: "silence", change: once, fault: faultnet.Fault{Do: faultnet.LoseReplyAndHang}},
		{what: "cut before", change: again, fault: faultnet.Fault{Do: faultnet.CutBefore}},
		{what: "loading", change: again, fault: answer("LOADING Redis is loading the dataset in memory"), create: true, swap: true},
		{what: "out of memory", change: again, fault: answer("OOM command not allowed when used memory > 'maxmemory'."), create: true, swap: true},
		{what: "snapshot failed", change: again, fault: answer("MISCONF Redis is configured to save RDB snapshots"), create: true, swap: true},
		{what: "no permission", change: again, fault: answer("NOPERM this user has no permissions to run the command"), create: true, swap: true},
		{what: "master down", change: again, fault: answer("MASTERDOWN Link with MASTER is down"), create: true, swap: true},
		{what: "no replicas", change: again, fault: answer("NOREPLICAS Not enough good replicas to write."), create: true, swap: true},
		{what: "busy", change: again, fault: answer("BUSY Redis is busy running a script."), create: true, swap: true},
		{what: "any other refusal", change: again, fault: answer("ERR it is Sunday"), create: true},
		{what: "no permission inside a script", change: again, fault: answer("NOPERM no permissions to run the 'publish' command script: 1f, on @user_script:9."), create: true},
		{what: "out of memory inside a script", change: again, fault: answer("ERR Error running script (call to f_1f): @user_script:9: -OOM command not allowed"), create: true, swap: true},
		{what: "loading, but the client repeats too", change: client, fault: answer("LOADING Redis is loading the dataset in memory")},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			proxy := faultnet.New(t, redistest.Start(t).Addr())
			s := openAt(t, "redis://"+proxy.Addr(), c.change)
			j := mustCreate(t, s, job(s, "k"))
			for _, command := range []string{"set", "evalsha", "eval"} {
				f := c.fault
				f.Command = command
				proxy.Inject(f)
			}
			_, _, err := s.Create(contextOf(t), job(s, "another"))
			mustBeUnavailable(t, "create", err, c.create)
			_, _, err = s.Swap(contextOf(t), j.WriteID, completed(s, j, nil))
			mustBeUnavailable(t, "swap", err, c.swap)
		})
	}

	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		s := openAt(t, server.URL(), again)
		j := mustCreate(t, s, job(s, "k"))
		server.Kill()
		// The first to notice may find that its connection ends while it writes.
		_, _ = s.Get(contextOf(t), j.Name)
		_, _, err := s.Create(contextOf(t), job(s, "another"))
		mustBeUnavailable(t, "create", err, true)
		_, _, err = s.Swap(contextOf(t), j.WriteID, completed(s, j, nil))
		mustBeUnavailable(t, "swap", err, true)
		_, err = s.Get(contextOf(t), j.Name)
		mustBeUnavailable(t, "get", err, false)
	})

	t.Run("a lost reply and then nobody there", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		proxy := faultnet.New(t, server.Addr())
		s := openAt(t, "redis://"+proxy.Addr(), again)
		mustCreate(t, s, job(s, "k"))
		parked := proxy.Park("set")
		go func() {
			<-parked.Arrived()
			server.Kill()
			parked.Release()
		}()
		_, _, err := s.Create(contextOf(t), job(s, "another"))
		mustBeUnavailable(t, "create", err, false)
	})
}

func answer(text string) faultnet.Fault {
	return faultnet.Fault{Do: faultnet.Answer, Reply: "-" + text + "\r\n"}
}

// TestHintsMayBeForbidden: a write whose hint the server refuses was done, and
// says so.
func TestHintsMayBeForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := rawClient(t, server.URL())
	if err := admin.Do(contextOf(t), "acl", "setuser", "gateway", "on", ">secret", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, "redis://gateway:secret@"+server.Addr())
	j := mustCreate(t, s, job(s, "k"))
	hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
	defer stop()
	mustSwap(t, openAt(t, "redis://gateway:secret@"+server.Addr()), j.WriteID, completed(s, j, nil))
	mustHint(t, hint) // by looking, once per second
}
