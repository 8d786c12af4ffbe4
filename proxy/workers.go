package proxy

import "time"

// workers run attempts. An attempt goes through all the handlers of a site, for which
// the stack of a new goroutine has to grow several times, and is copied each time; one
// that has done so before is used again.
type workers struct {
	next  chan func()     // to one that has nothing to do
	ended <-chan struct{} // closed when none is to wait any more
}

// workerIdle is how long one waits for something to do.
const workerIdle = time.Second

// run has a function run, apart from the caller and at once.
func (w *workers) run(f func()) {
	select {
	case w.next <- f:
	default:
		go w.work(f)
	}
}

func (w *workers) work(f func()) {
	idle := time.NewTimer(workerIdle)
	defer idle.Stop()
	for {
		f()
		idle.Reset(workerIdle)
		select {
		case f = <-w.next:
		case <-idle.C:
			return
		case <-w.ended:
			return
		}
	}
}
