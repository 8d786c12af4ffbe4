package keystore

import (
	"bytes"
	"testing"
	"time"
)

// claimedJob is a job as the claim of an ordinary request writes it, and answeredJob
// as its commit does, with an answer of 1 KiB.
func claimedJob() *Job {
	id := identity()
	id.KeySent = "1f0c2c2e-9a5c-4f61-9d7b-2f4f1a7d9c11"
	return stored(NewJob(id, starts(1, epoch)))
}

func answeredJob() *Job { return stored(claimedJob().Report(answered()).Next) }

func answered() Report {
	resp := answer(string(bytes.Repeat([]byte("x"), 1<<10)))
	resp.Header = map[string][]string{
		"Content-Type": {"application/json; charset=utf-8"}, "Date": {"Tue, 14 Nov 2023 22:13:21 GMT"}, "Server": {"nginx"},
		"Cache-Control": {"no-store"}, "Vary": {"Origin, Accept"}, "X-Request-Id": {"f058ebd6-02f7-4d3f-942e-904344e8cde5"},
	}
	return Report{
		Token: tok(1), Outcome: OutcomeFinal, Response: resp, At: after(time.Second), Reason: "answered with status 201",
		Evidence: Evidence{
			Upstream: "10.0.0.1:8080", Hooked: true, Asked: 1, Connected: 1, Wrote: 1, FirstByte: 1,
			Status: 201, Size: 1 << 10,
		},
	}
}

func BenchmarkEncodeRecord(b *testing.B) {
	for name, j := range map[string]*Job{"claim": claimedJob(), "commit": answeredJob()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := EncodeRecord(j); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(encoded(b, j))), "record-bytes")
		})
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	for name, j := range map[string]*Job{"claim": claimedJob(), "commit": answeredJob()} {
		b.Run(name, func(b *testing.B) {
			rec := encoded(b, j)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeRecord(j.Name, rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTransitions is what the state machine itself takes of a fresh request, and
// of a replay.
func BenchmarkTransitions(b *testing.B) {
	b.Run("claim", func(b *testing.B) {
		id, n := identity(), starts(1, epoch)
		b.ReportAllocs()
		for b.Loop() {
			NewJob(id, n)
		}
	})
	b.Run("commit", func(b *testing.B) {
		j, r := claimedJob(), answered()
		b.ReportAllocs()
		for b.Loop() {
			j.Report(r)
		}
	})
	b.Run("judge", func(b *testing.B) {
		j := answeredJob()
		c := Claim{Token: tok(2), Fingerprints: []Fingerprint{j.Fingerprint}, First: true}
		b.ReportAllocs()
		for b.Loop() {
			if Judge(j, c, after(time.Hour)) != Replay {
				b.Fatal("not a replay")
			}
		}
	})
}
