package proxy

import (
	"errors"
	"io"
	"sync"
	"time"
)

var (
	errClientStalled = errors.New("the client takes nothing of the answer")
	errClientGone    = errors.New("the client has gone")
)

// feed takes the body of an answer to a client while it is captured. What is
// kept anyway, the client reads at its own pace, and nobody waits for it. Beyond
// that its upstream waits until the client has taken each part.
type feed struct {
	idle    time.Duration
	until   time.Time   // when the upstream is listened to no longer, silent or not
	silence *time.Timer // ends the attempt when its upstream has been silent for idle

	mu      sync.Mutex
	changed *sync.Cond
	kept    []byte // captured up to now, within the limit
	taken   int    // how much of it the client has
	part    []byte // beyond the limit: lent until the client has taken it
	stalled *time.Timer
	ended   error // how it has ended, io.EOF if as it should; nil: it goes on
}

func newFeed(idle time.Duration, until time.Time, silence *time.Timer) *feed {
	f := &feed{idle: idle, until: until, silence: silence}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// alive starts the clock on a silent upstream anew, unless it has run out.
func (f *feed) alive() {
	if f.silence.Stop() {
		f.restart()
	}
}

// restart starts the stopped clock.
func (f *feed) restart() { f.silence.Reset(min(f.idle, time.Until(f.until))) }

// keep says what is captured up to now. The bytes must not change any more.
func (f *feed) keep(body []byte) {
	f.alive()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended == nil {
		f.kept = body
		f.changed.Broadcast()
	}
}

// push gives the client a part that is not kept. While the client takes it, the
// clock on the upstream stands still. A client that takes nothing for as long is
// left behind: that the answer's end is seen matters more.
func (f *feed) push(p []byte) {
	if f.silence.Stop() {
		defer f.restart()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		return
	}
	f.part = p
	f.changed.Broadcast()
	f.stalled = time.AfterFunc(f.idle, f.leaveBehind)
	for len(f.part) > 0 && f.ended == nil {
		f.changed.Wait()
	}
	f.stalled.Stop()
	f.part, f.stalled = nil, nil
}

// leaveBehind gives up on a client that takes nothing.
func (f *feed) leaveBehind() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.part) > 0 { // else it has taken it in the last moment
		f.endLocked(errClientStalled)
	}
}

// end ends the body. The first end stands; what is kept up to then can be read
// first.
func (f *feed) end(how error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(how)
}

func (f *feed) endLocked(how error) {
	if f.ended == nil {
		f.ended = how
		f.changed.Broadcast()
	}
}

// Read implements io.Reader, for the client's side.
func (f *feed) Read(p []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n == 0 {
		switch {
		case f.taken < len(f.kept):
			n = copy(p, f.kept[f.taken:])
			f.taken += n
		case f.ended != nil:
			return 0, f.ended
		case len(f.part) > 0:
			f.kept, f.taken = nil, 0 // the client has all of it
			n = copy(p, f.part)
			f.part = f.part[n:]
		default:
			f.changed.Wait()
		}
	}
	if f.stalled != nil {
		f.stalled.Reset(f.idle)
	}
	f.changed.Broadcast()
	return n, nil
}

// leave says that the client takes nothing any more.
func (f *feed) leave() { f.end(errClientGone) }

var _ io.Reader = (*feed)(nil)
