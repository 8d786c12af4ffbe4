package boltstore

import (
	"bytes"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
)

// BenchmarkDurableJob measures whole jobs: a claim and a commit, each on the
// disk before the next step, by 64 clients.
func BenchmarkDurableJob(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 128 << 10, 1 << 20} {
		b.Run(strconv.Itoa(size>>10)+"KiB", func(b *testing.B) { benchmarkJobs(b, size) })
	}
}

func benchmarkJobs(b *testing.B, size int) {
	s := newStore(b, Options{})
	body := bytes.Repeat([]byte("x"), size)
	var keys atomic.Int64
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	before := s.commits.Load()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			j := claimed(strconv.FormatInt(keys.Add(1), 10), s.Now())
			mustCreate(b, s, j)
			mustSwap(b, s, j, completed(j, s.Now(), body))
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(2*float64(b.N)/float64(s.commits.Load()-before), "operations/commit")
}

// BenchmarkReplay measures claims that meet a completed job.
func BenchmarkReplay(b *testing.B) {
	s := newStore(b, Options{})
	j := claimed("k", s.Now())
	mustCreate(b, s, j)
	mustSwap(b, s, j, completed(j, s.Now(), bytes.Repeat([]byte("x"), 1024)))
	b.RunParallel(func(pb *testing.PB) {
		again := claimed("k", s.Now())
		for pb.Next() {
			if present, created, err := s.Create(b.Context(), again); err != nil || created || present == nil {
				b.Errorf("create: %v, %v, %v", present, created, err)
			}
		}
	})
}
