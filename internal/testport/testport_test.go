package testport

import (
	"net"
	"sync"
	"testing"
)

func TestTakenOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]bool)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 100 {
				port := Take(t)
				mu.Lock()
				if seen[port] {
					t.Errorf("port %s was given twice", port)
				}
				seen[port] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// What was taken can be listened on, again and again.
func TestCanBeListenedOn(t *testing.T) {
	t.Parallel()
	port := Take(t)
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// A port belongs to its test, and to others when that has ended.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	var port string
	t.Run("taken", func(t *testing.T) {
		port = Take(t)
		if l, err := net.Listen("tcp", net.JoinHostPort(held, port)); err == nil {
			l.Close()
			t.Error("it is not held")
		}
	})
	l, err := net.Listen("tcp", net.JoinHostPort(held, port))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
