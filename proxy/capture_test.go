package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
)

// An upstream can say a status that no answer can have. What it meant is unknown:
// nothing is made of it that anybody would be given for an answer.
func TestStatusThatNoAnswerHas(t *testing.T) {
	for _, status := range []int{0, 42, 1000} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"": {says(status, "something went wrong")}})
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantAttempts(" unknown")
			})
		})
	}
}

// BenchmarkCapture keeps an answer that comes in pieces, of a length that was said
// before or was not.
func BenchmarkCapture(b *testing.B) {
	piece := make([]byte, 32<<10)
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		for _, declared := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dKiB/declared=%t", size>>10, declared), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c := newCapture(http.MethodPost, 4<<20)
					if declared {
						c.Header()["Content-Length"] = []string{strconv.Itoa(size)}
					}
					for left := size; left > 0; {
						n, _ := c.Write(piece[:min(left, len(piece))])
						left -= n
					}
					if answer, whole := c.finish(true); !whole || len(answer.Body) != size {
						b.Fatal("the answer is not whole")
					}
				}
			})
		}
	}
}

// A handler that is left behind may still be setting fields of the header.
func TestCaptureIsAbandonedUnderItsHandler(t *testing.T) {
	c := newCapture(http.MethodGet, 1<<20)
	_, _ = c.Write([]byte("some"))
	begun, stop, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			c.Header().Set("Field-"+strconv.Itoa(n%100), "value")
			if n == 0 {
				close(begun)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	<-begun
	c.abandon()
	close(stop)
	<-ended
	if _, err := c.Write([]byte("more")); err == nil {
		t.Error("it takes more")
	}
}
