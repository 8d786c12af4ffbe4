package proxy

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestSamplerHoldsBackAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Sampler
		let := func(times int) (n int32, held int64) {
			var lets atomic.Int32
			var all sync.WaitGroup
			for range times {
				all.Go(func() {
					attr, ok := s.Lets()
					if ok {
						lets.Add(1)
					}
					if attr.Key != "" {
						held += attr.Value.Int64() // once at most
					}
				})
			}
			all.Wait()
			return lets.Load(), held
		}
		for _, c := range []struct {
			times int
			lets  int32
			held  int64
		}{{3, 3, 0}, {100, 10, 0}, {100, 10, 90}, {1, 1, 90}, {1, 1, 0}} {
			if lets, held := let(c.times); lets != c.lets || held != c.held {
				t.Errorf("of %d came %d, and %d were said to have been held back before; want %d and %d", c.times, lets, held, c.lets, c.held)
			}
			time.Sleep(sampleEvery)
		}
	})
}
