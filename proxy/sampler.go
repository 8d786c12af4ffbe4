package proxy

import (
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// sampleEvery is the time in which a line of the log comes sampleBurst times at most.
	sampleEvery = 10 * time.Second
	sampleBurst = 10
)

// Sampler keeps a line that many requests could cause from flooding the log. The
// zero value is ready to be used.
type Sampler struct {
	since atomic.Int64 // when the present interval began
	asked atomic.Int64 // how often the line would have come in it
}

// samplers are those of a gateway's lines that an outage of an upstream or of the
// store could make a flood.
type samplers struct{ noEffect, failingOver, racing, notRenewed Sampler }

// Lets reports whether the line may come now. With it comes how many were held back
// in the interval before, if any.
func (s *Sampler) Lets() (heldBack slog.Attr, ok bool) {
	now := time.Now().UnixNano()
	since := s.since.Load()
	if now-since >= int64(sampleEvery) && s.since.CompareAndSwap(since, now) {
		if held := s.asked.Swap(1) - sampleBurst; held > 0 {
			heldBack = slog.Int64("held_back", held)
		}
		return heldBack, true
	}
	return heldBack, s.asked.Add(1) <= sampleBurst
}
