// Tests of the console in a browser. A module of its own, so that nothing of the
// browser's driver gets into the product's.
module github.com/caddy-idempotency/caddy-idempotency/e2e/browser

go 1.26.0

require (
	github.com/caddy-idempotency/caddy-idempotency v0.0.0
	github.com/chromedp/cdproto v0.160.1
	github.com/chromedp/chromedp v0.23.1
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect

replace github.com/caddy-idempotency/caddy-idempotency => ../..
