package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// stripeAPI is as much of Stripe's API as it takes to pay: POST of a
// PaymentIntent, whose description is the order that is paid. Of itself it knows
// nothing of repetitions: whoever comes, pays.
type stripeAPI struct {
	t    *testing.T
	addr string

	mu     sync.Mutex
	orders map[string]*stripeOrder
}

// stripeOrder is what the API has seen of one order.
type stripeOrder struct {
	requests, executions int
	keys                 []string // each once
	play                 func(*payment)
}

// payment is one request to pay.
type payment struct {
	api   *stripeAPI
	order *stripeOrder
	nth   int // of the requests for this order, from 1
	w     http.ResponseWriter
	r     *http.Request
}

func newStripeAPI(t *testing.T) *stripeAPI {
	t.Helper()
	api := &stripeAPI{t: t, orders: make(map[string]*stripeOrder)}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	api.addr = strings.TrimPrefix(server.URL, "http://")
	return api
}

// plays says what becomes of the requests for an order. Otherwise each is paid.
func (api *stripeAPI) plays(order string, play func(*payment)) {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.of(order).play = play
}

func (api *stripeAPI) of(order string) *stripeOrder {
	if api.orders[order] == nil {
		api.orders[order] = &stripeOrder{play: func(p *payment) { p.pay() }}
	}
	return api.orders[order]
}

// count returns what has come for an order, and how often it was paid.
func (api *stripeAPI) count(order string) (requests, executions int) {
	api.mu.Lock()
	defer api.mu.Unlock()
	o := api.of(order)
	return o.requests, o.executions
}

// wantOneKey checks that all requests for an order had one and the same key.
func (api *stripeAPI) wantOneKey(order string) {
	api.t.Helper()
	api.mu.Lock()
	defer api.mu.Unlock()
	if o := api.of(order); len(o.keys) != 1 || o.keys[0] == "" {
		api.t.Errorf("%s: the requests had the keys %q, want one", order, o.keys)
	}
}

func (api *stripeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	order := r.PostFormValue("description")
	if r.Method != http.MethodPost || r.URL.Path != "/v1/payment_intents" || order == "" || r.Header.Get("Authorization") != "Bearer sk_test_123" {
		api.t.Errorf("the API got %s %s, order %q, which is nothing that a client was told to ask for", r.Method, r.URL, order)
		http.Error(w, "no such thing", http.StatusNotFound)
		return
	}
	api.mu.Lock()
	o := api.of(order)
	o.requests++
	if key := r.Header.Get("Idempotency-Key"); !slices.Contains(o.keys, key) {
		o.keys = append(o.keys, key)
	}
	p, play := &payment{api: api, order: o, nth: o.requests, w: w, r: r}, o.play
	api.mu.Unlock()
	w.Header().Set("Request-Id", fmt.Sprintf("req_%d", p.nth))
	play(p)
}

// execute pays without an answer.
func (p *payment) execute() (id string) {
	p.api.mu.Lock()
	defer p.api.mu.Unlock()
	p.order.executions++
	return "pi_" + strconv.Itoa(p.order.executions)
}

// pay pays and answers with the PaymentIntent.
func (p *payment) pay() {
	intent := paymentIntent(p.execute(), p.r.PostFormValue("amount"))
	p.w.Header().Set("Content-Type", "application/json")
	_, _ = p.w.Write(intent)
}

// fail answers with an error in Stripe's format.
func (p *payment) fail(status int, kind, code, message string) {
	e := map[string]any{"type": kind, "message": message}
	if code != "" {
		e["code"] = code
	}
	body, _ := json.Marshal(map[string]any{"error": e})
	p.w.Header().Set("Content-Type", "application/json")
	p.w.WriteHeader(status)
	_, _ = p.w.Write(body)
}

// drop closes the connection instead of answering.
func (p *payment) drop() { panic(http.ErrAbortHandler) }

func paymentIntent(id, amount string) []byte {
	n, _ := strconv.Atoi(amount)
	body, _ := json.Marshal(map[string]any{
		"id": id, "object": "payment_intent", "amount": n, "currency": "eur", "status": "succeeded", "livemode": false,
	})
	return body
}
