package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever asks has all of the time, and hardly more; and no context outlives its parent.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancel(t.Context())
		d := deadlines{parent: parent}
		first := d.context()
		time.Sleep(storeMoment - 1)
		if d.context() != first {
			t.Error("calls of one moment have a context each")
		}
		time.Sleep(storeTime)
		if err := first.Err(); err != nil {
			t.Errorf("after %v: %v", storeTime, err)
		}
		second := d.context()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if first.Err() == nil || second.Err() != nil {
			t.Errorf("%v after the last call with the first context: %v, and the next one's: %v", storeTime, first.Err(), second.Err())
		}
		end()
		if second.Err() == nil || d.context().Err() == nil {
			t.Error("not over with its parent")
		}
	})
}

// BenchmarkDeadlines is what bounding one call to the store costs.
func BenchmarkDeadlines(b *testing.B) {
	b.Run("shared", func(b *testing.B) {
		d := deadlines{parent: b.Context()}
		b.ReportAllocs()
		for b.Loop() {
			if d.context().Done() == nil {
				b.Fatal("no end")
			}
		}
	})
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithTimeout(b.Context(), storeTime)
			if ctx.Done() == nil {
				b.Fatal("no end")
			}
			cancel()
		}
	})
}
