package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// request is what a client asks for.
type request struct {
	method, path, host string
	owner, key         string
	contentType, body  string
	headers            http.Header
}

// post is the request that most tests send. Its host is the one of a shop in
// front of which the gateways stand: the same on each of them.
func post(key string) request {
	return request{
		method: http.MethodPost, path: "/pay", host: "shop.example",
		owner: "alice", key: key, contentType: "application/json", body: `{"amount":1}`,
		headers: http.Header{"Up-Case": {key}},
	}
}

// tell returns the request with one more line for the upstream's script.
func (r request) tell(name, value string) request {
	r.headers = r.headers.Clone()
	r.headers.Add(name, value)
	return r
}

// as returns the request with something else in it.
func (r request) as(change func(*request)) request {
	r.headers = r.headers.Clone()
	change(&r)
	return r
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
	took   time.Duration
}

// problem is the body of a refusal.
type problem struct {
	Type     string `json:"type"`
	Status   int    `json:"status"`
	Advice   string `json:"advice"`
	Job      string `json:"job"`
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
}

// problem returns the refusal that the answer is, with an empty type if it is
// none.
func (a answer) problem() (p problem) {
	if a.err == nil && a.header.Get("Content-Type") == "application/problem+json" {
		_ = json.Unmarshal([]byte(a.body), &p)
	}
	return p
}

// code returns the code of a refusal, or nothing.
func (a answer) code() string {
	code, ok := strings.CutPrefix(a.problem().Type, "urn:idempotency:")
	if !ok {
		return ""
	}
	return code
}

func (a answer) job() string    { return a.header.Get("Idempotency-Job") }
func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// client is somebody who sends requests to a site of a gateway.
type client struct {
	t   *testing.T
	url string
	c   *http.Client
}

// client returns a client of the gateway's first site.
func (g *gateway) client() *client { return g.clientOf(0) }

func (g *gateway) clientOf(site int) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	g.t.Cleanup(transport.CloseIdleConnections)
	return &client{t: g.t, url: g.url(site), c: &http.Client{Transport: transport}}
}

// do sends a request and waits for the answer.
func (c *client) do(r request) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return c.doContext(ctx, r)
}

func (c *client) doContext(ctx context.Context, r request) (a answer) {
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	req, err := c.request(ctx, r)
	if err != nil {
		return answer{err: err}
	}
	resp, err := c.c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(all), err: err}
}

// request returns a request as net/http sends it.
func (c *client) request(ctx context.Context, r request) (*http.Request, error) {
	var body io.Reader
	if r.body != "" {
		body = bytes.NewReader([]byte(r.body))
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, body)
	if err != nil {
		return nil, err
	}
	// A client that repeats by itself would count as somebody's mistake here.
	req.GetBody = nil
	maps.Copy(req.Header, r.headers)
	req.Host = r.host
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.owner != "" {
		req.Header.Set("X-Owner", r.owner)
	}
	if r.key != "" {
		// In lower case, net/http does not take the header as a licence to send
		// the request again.
		req.Header["idempotency-key"] = []string{r.key}
	}
	return req, nil
}

// pending is a request under way.
type pending struct {
	t      *testing.T
	result chan answer
	cancel context.CancelFunc
}

// start sends a request without waiting for the answer.
func (c *client) start(r request) *pending {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	c.t.Cleanup(cancel)
	p := &pending{t: c.t, result: make(chan answer, 1), cancel: cancel}
	go func() { p.result <- c.doContext(ctx, r) }()
	return p
}

// answer waits for the answer.
func (p *pending) answer() answer {
	a := <-p.result
	p.result <- a
	return a
}

// leave makes the client hang up, and waits until it has.
func (p *pending) leave() {
	p.t.Helper()
	p.cancel()
	if a := p.answer(); a.err == nil {
		p.t.Fatalf("the client was to leave, and had been answered with status %d before", a.status)
	}
}

// done reports whether the answer has come.
func (p *pending) done() bool { return len(p.result) > 0 }

// volley sends the request n times at once, by turns to each of the clients.
func volley(n int, r request, clients ...*client) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	gun := make(chan struct{})
	for i := range answers {
		all.Go(func() {
			<-gun
			answers[i] = clients[i%len(clients)].do(r)
		})
	}
	close(gun)
	all.Wait()
	return answers
}
