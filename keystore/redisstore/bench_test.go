package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// BenchmarkJob is a fresh job: claim and commit, with a body of 1 KB.
func BenchmarkJob(b *testing.B) {
	for _, parallel := range []int{1, 64} {
		b.Run(fmt.Sprint("clients=", parallel), func(b *testing.B) {
			s := openAt(b, redistest.Start(b).URL())
			body := make([]byte, 1<<10)
			var n atomic.Int64
			b.SetParallelism(parallel)
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
}

// BenchmarkReplay is the claim of a completed job.
func BenchmarkReplay(b *testing.B) {
	for _, parallel := range []int{1, 64} {
		b.Run(fmt.Sprint("clients=", parallel), func(b *testing.B) {
			s := openAt(b, redistest.Start(b).URL())
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			j := job(s, "k")
			if _, _, err := s.Create(ctx, j); err != nil {
				b.Fatal(err)
			}
			if _, _, err := s.Swap(ctx, j.WriteID, completed(s, j, make([]byte, 1<<10))); err != nil {
				b.Fatal(err)
			}
			b.SetParallelism(parallel)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if present, _, err := s.Create(ctx, job(s, "k")); err != nil || present == nil {
						b.Error(present, err)
					}
				}
			})
		})
	}
}
