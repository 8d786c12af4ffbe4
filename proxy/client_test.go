package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A client may close its sending side once its request is out, and still wait
// for the answer. To a server that looks as if it had left; told nothing, it
// would take net/http's empty 200 for its answer.
func TestHalfClosedClientIsAnswered(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"leader", "waiter"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{})
			entered, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
			protected := f.route.Middleware(func(*http.Request) string { return "alice" },
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					f.executions.Add(1)
					close(entered)
					<-release
					http.Error(w, "broken", http.StatusInternalServerError)
				}))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Half") != "" {
					go func() {
						<-r.Context().Done()
						close(left)
					}()
				}
				protected.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			send := func(header string) *net.TCPConn {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				_ = conn.SetDeadline(time.Now().Add(patience))
				fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\n%sContent-Length: 2\r\n\r\nhi", header)
				return conn.(*net.TCPConn)
			}
			if who == "waiter" {
				send("")
				<-entered
			}
			half := send("X-Half: 1\r\n")
			if who == "leader" {
				<-entered
			}
			if err := half.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			<-left // the server takes it for gone
			if who == "leader" {
				close(release)
			} else {
				defer close(release) // only after the waiter has its answer
			}
			resp, err := http.ReadResponse(bufio.NewReader(half), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			status, text := 500, "broken"
			if who == "waiter" {
				status, text = 409, CodeInFlight
			}
			if resp.StatusCode != status || !strings.Contains(string(body), text) || resp.Header.Get(HeaderJob) == "" {
				t.Errorf("got %d %q %v", resp.StatusCode, body, resp.Header)
			}
			f.wantExecutions(1)
		})
	}
}
