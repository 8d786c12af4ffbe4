// Command pay pays an order as a program does that uses Stripe's SDK for Go, and
// says what it got to see. The SDK is left as it comes, but for where its API is,
// and that it reports nothing of itself.
//
//	pay <url> <order> <amount> <calls at once> [<key>]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/stripe/stripe-go/v85"
)

// seen is what became of one call.
type seen struct {
	ID       string `json:"id,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
	Error    string `json:"error,omitempty"` // its type
	Status   int    `json:"status,omitempty"`
	Code     string `json:"code,omitempty"`
	Message  string `json:"message,omitempty"`
	Job      string `json:"job,omitempty"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pay:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("want <url> <order> <amount> <calls at once> [<key>]")
	}
	amount, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return fmt.Errorf("amount: %w", err)
	}
	calls, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("calls at once: %w", err)
	}
	client := stripe.NewClient("sk_test_123", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:             new(args[0]),
		EnableTelemetry: new(false),
		LeveledLogger:   &stripe.LeveledLogger{Level: stripe.LevelNull},
	})))
	results := make([]seen, calls)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			params := &stripe.PaymentIntentCreateParams{
				Amount: new(amount), Currency: new("eur"), Description: new(args[1]),
			}
			if len(args) > 4 {
				params.SetIdempotencyKey(args[4])
			}
			results[i] = see(client.V1PaymentIntents.Create(context.Background(), params))
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(results)
}

func see(intent *stripe.PaymentIntent, err error) seen {
	var failed *stripe.Error
	switch {
	case err == nil:
		h := intent.LastResponse.Header
		return seen{ID: intent.ID, Replayed: replayed(h), Job: h.Get("Idempotency-Job")}
	case errors.As(err, &failed):
		s := seen{Error: string(failed.Type), Status: failed.HTTPStatusCode, Code: string(failed.Code), Message: failed.Msg}
		if failed.LastResponse != nil {
			s.Replayed, s.Job = replayed(failed.LastResponse.Header), failed.LastResponse.Header.Get("Idempotency-Job")
		}
		return s
	}
	return seen{Error: fmt.Sprintf("%T", err), Message: err.Error()}
}

func replayed(h http.Header) bool { return h.Get("Idempotent-Replayed") == "true" }
