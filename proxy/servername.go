package proxy

import "net/http"

// introduced is a provider whose answers begin with what the server says of itself in
// each of its answers, as they would without a gateway: a handler may take that
// away, as proxies do in favour of what their upstream says.
type introduced struct {
	Provider
	server []string
}

// ServeHTTP implements Provider.
func (n introduced) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	if n.server != nil {
		w.Header()["Server"] = n.server
	}
	return n.Provider.ServeHTTP(w, r)
}
