//go:build unix

package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// benchmarkAlike runs a benchmark with one and with 64 clients, with shared round trips
// and without. What it reports besides is the CPU time that this side has spent, which
// varies less than time does where the machine is not quiet.
func benchmarkAlike(b *testing.B, run func(b *testing.B, s *Store)) {
	for _, parallel := range []int{1, 64} {
		for _, unshared := range []bool{false, true} {
			b.Run(fmt.Sprintf("clients=%d/shared=%t", parallel, !unshared), func(b *testing.B) {
				s := openAt(b, redistest.Start(b).URL(), func(o *Options) { o.Unshared = unshared })
				b.SetParallelism(parallel)
				before := spent(b)
				run(b, s)
				b.ReportMetric(float64(spent(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// spent is how much CPU time this process has had.
func spent(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkJob is a fresh job: claim and commit, with a body of 1 KB.
func BenchmarkJob(b *testing.B) {
	benchmarkAlike(b, func(b *testing.B, s *Store) {
		body := make([]byte, 1<<10)
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for pb.Next() {
				j := job(s, fmt.Sprint("k", n.Add(1)))
				if _, created, err := s.Create(ctx, j); err != nil || !created {
					b.Error(created, err)
				}
				if _, swapped, err := s.Swap(ctx, j.WriteID, completed(s, j, body)); err != nil || !swapped {
					b.Error(swapped, err)
				}
			}
		})
	})
}

// BenchmarkReplay is the claim of a completed job.
func BenchmarkReplay(b *testing.B) {
	benchmarkAlike(b, func(b *testing.B, s *Store) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		j := job(s, "k")
		if _, _, err := s.Create(ctx, j); err != nil {
			b.Fatal(err)
		}
		if _, _, err := s.Swap(ctx, j.WriteID, completed(s, j, make([]byte, 1<<10))); err != nil {
			b.Fatal(err)
		}
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if present, _, err := s.Create(ctx, job(s, "k")); err != nil || present == nil {
					b.Error(present, err)
				}
			}
		})
	})
}

// BenchmarkBody writes and reads an answer whose body is kept apart.
func BenchmarkBody(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, size := range []int{64 << 10, 1 << 20} {
		s := openAt(b, redistest.Start(b).URL())
		j := mustCreate(b, s, job(s, "k"))
		done := mustSwap(b, s, j.WriteID, completed(s, j, make([]byte, size)))
		measure := func(what string, f func() error) {
			b.Run(fmt.Sprintf("%s/%dKiB", what, size>>10), func(b *testing.B) {
				b.ReportAllocs()
				before := spent(b)
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(spent(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
		measure("write", func() error { // under the same name, so that the server does not grow
			_, _, err := s.Swap(ctx, done.WriteID, done)
			return err
		})
		measure("read", func() error {
			_, err := s.Get(ctx, done.Name)
			return err
		})
	}
}
