package main

import (
	"math/rand/v2"
	"sync/atomic"
)

// series numbers the series of keys of a run.
var series atomic.Uint32

// fresh keys are never used again.
type fresh struct {
	series uint32
	n      atomic.Uint64
}

func newFresh() *fresh { return &fresh{series: series.Add(1)} }

func (f *fresh) next() (key, expectation) { return newKey(f.series, f.n.Add(1)-1), first }

func (f *fresh) distinct() int64 { return int64(f.n.Load()) }

// again are keys of which each is used so many times in a row.
type again struct {
	series uint32
	times  uint64
	n      atomic.Uint64
}

func newAgain(times uint64) *again { return &again{series: series.Add(1), times: times} }

func (a *again) next() (key, expectation) { return newKey(a.series, (a.n.Add(1)-1)/a.times), either }

func (a *again) distinct() int64 { return int64((a.n.Load() + a.times - 1) / a.times) }

// known are the keys of jobs that are there: at random, or one after the other so
// that the one longest unused comes next.
type known struct {
	series  uint32
	size    uint64
	inOrder bool
	n       atomic.Uint64
}

func (k *known) next() (key, expectation) {
	if k.inOrder {
		return newKey(k.series, (k.n.Add(1)-1)%k.size), replay
	}
	return newKey(k.series, rand.Uint64N(k.size)), replay
}

func (k *known) distinct() int64 { return 0 }

// counting are keys of which it is known how many different ones were used for
// the first time.
type counting interface {
	keys
	distinct() int64
}
