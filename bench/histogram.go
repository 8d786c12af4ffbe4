package main

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// histogram counts durations, each to about three per cent.
type histogram struct {
	counts [64 * perOctave]int64
	n      int64
}

const perOctave = 32

func (h *histogram) add(d time.Duration) {
	us := uint64(max(d.Nanoseconds()/100, 1)) // tenths of a microsecond
	octave := bits.Len64(us) - 1
	var within uint64
	if octave >= 5 {
		within = us >> (octave - 5) & (perOctave - 1)
	} else {
		within = us << (5 - octave) & (perOctave - 1)
	}
	h.counts[octave*perOctave+int(within)]++
	h.n++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
}

// quantile is the duration below which this part of all is.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.n)))
	for i, n := range h.counts {
		if rank -= n; rank <= 0 && h.n > 0 {
			low := math.Exp2(float64(i/perOctave)) * (1 + (float64(i%perOctave)+0.5)/perOctave)
			return time.Duration(low * 100)
		}
	}
	return 0
}

// median of some numbers, and the lowest and highest of them.
func spread(values []float64) (median, low, high float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median = sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return median, sorted[0], sorted[len(sorted)-1]
}
