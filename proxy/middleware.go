package proxy

import (
	"errors"
	"net/http"
)

// Middleware protects a plain net/http handler. Owner returns the caller whom
// the key of a request belongs to; where it returns nothing, the request is
// refused.
//
// The handler is run with a request whose context goes on when the client
// leaves, and must not keep the response writer.
func (rt *Route) Middleware(owner func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := rt.Serve(w, r, Exchange{
			Owner: func() string { return owner(r) },
			Next: func(w http.ResponseWriter, r *http.Request) error {
				next.ServeHTTP(w, r)
				return nil
			},
			Provider: func(string) Provider { return handlerProvider{next} },
		})
		var refusal *Refusal
		switch {
		case err == nil:
		case errors.As(err, &refusal):
			_ = refusal.Write(w)
		default:
			http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
		}
	})
}

// handlerProvider is a plain handler as a provider: it returns no errors.
type handlerProvider struct{ http.Handler }

func (p handlerProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	p.Handler.ServeHTTP(w, r)
	return nil
}

func (handlerProvider) Inspect(error) Failure { return Failure{} }
