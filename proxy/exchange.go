package proxy

import "net/http"

// Provider runs the chain of handlers that carries out one attempt.
type Provider interface {
	// ServeHTTP runs the chain. The request is the attempt's own; its context
	// ends with the attempt, not with the client.
	ServeHTTP(w http.ResponseWriter, r *http.Request) error
	// Inspect says what an error that ServeHTTP returned means, or, without one, how
	// the answer came about.
	Inspect(err error) Failure
}

// Failure is what an error of a provider means.
type Failure struct {
	// Status is the HTTP status that the error would be answered with; zero if
	// it has none.
	Status int
	// DialFailed says that the error is a connection that was refused, from a
	// transport that reports nothing else.
	DialFailed bool
	// Retried says that the chain had tried more than once.
	Retried bool
	// Answered says that the chain had an answer, of which it made this error.
	Answered bool
	// Replaced is the answer in place of which a handler around the one that had
	// given it has put its own, or this error.
	Replaced Progress
}

// Exchange is what surrounds one request.
type Exchange struct {
	// Asked is the request as the client sent it, before any rewrite. Nil: the
	// request itself.
	Asked *http.Request
	// Owner returns the caller whom the key belongs to, or nothing.
	Owner func() string
	// ReplayCheck decides whether a stored answer may be given to the request. If
	// not, it answers the request itself, or returns the error to answer with. It
	// is called in the request's goroutine. Nil: every stored answer may be.
	ReplayCheck func(w http.ResponseWriter, r *http.Request) (passed bool, err error)
	// Next serves a request that is not protected.
	Next func(w http.ResponseWriter, r *http.Request) error
	// Provider returns what runs an attempt on the provider of this name, isolated
	// from the request that asked for it; where the route names none, the name is
	// empty. It is called in that request's goroutine.
	Provider func(name string) Provider
	// Account is told what becomes of the request. Nil: nobody wants to know.
	Account *Account
}
