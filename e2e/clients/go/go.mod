// A program that uses Stripe's SDK, for the tests. It is a module of its own, so
// that nothing of the SDK gets into the product's.
module github.com/caddy-idempotency/caddy-idempotency/e2e/clients/go

go 1.26.0

require github.com/stripe/stripe-go/v85 v85.0.0
