package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// options are the lines of an idempotency block: what is set, by name.
type options map[string]string

// site is one site of a gateway's Caddyfile.
type site struct {
	// store is what follows the word store.
	store string
	// options are those that matter to the test. The others are chosen so that
	// nothing ends by time.
	options options
	// handler is the rest of the site: as a rule, a reverse_proxy.
	handler string
	// certificate names the files with which the site is served over TLS, also
	// over HTTP/3. Without, it is served in the clear.
	certificate string
	// raw takes the place of the lines made of the fields above.
	raw string
}

// defaults are long enough for the slowest machine: a test that wants to see a
// limit reached sets it.
var defaults = options{
	"owner":   "{http.request.header.X-Owner}",
	"wait":    "60s",
	"timeout": "60s",
	"linger":  "60s",
}

func (s site) scheme() string {
	if s.certificate != "" {
		return "https"
	}
	return "http"
}

// block returns the site's directives.
func (s site) block() string {
	if s.raw != "" {
		return s.raw
	}
	var b strings.Builder
	b.WriteString("idempotency {\n")
	if s.store != "" {
		b.WriteString("store " + s.store + "\n")
	}
	all := maps.Clone(defaults)
	maps.Copy(all, s.options)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.WriteString(name + " " + all[name] + "\n")
	}
	b.WriteString("}\n" + s.handler + "\n")
	return b.String()
}

// to returns a site in front of upstreams.
func to(ups ...*upstream) site {
	addrs := make([]string, len(ups))
	for i, u := range ups {
		addrs[i] = u.addr
	}
	return site{handler: "reverse_proxy " + strings.Join(addrs, " ")}
}

// on returns the site with another store.
func (s site) on(store string) site {
	s.store = store
	return s
}

// with returns the site with one more option, or another value for it.
func (s site) with(name, value string) site {
	s.options = maps.Clone(s.options)
	if s.options == nil {
		s.options = options{}
	}
	s.options[name] = value
	return s
}

// caddyfile returns the configuration of a gateway with these sites, on these
// ports. The first site also says which gateway this is, so that nobody takes
// another server on the same port for it.
func caddyfile(id, global, admin string, ports []string, sites []site) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\nadmin %s\npersist_config off\nauto_https off\nmetrics\n", admin)
	if !strings.Contains(global, "log {") {
		b.WriteString("log {\nlevel DEBUG\nformat json\n}\n")
	}
	b.WriteString(global + "\n}\n")
	for i, s := range sites {
		fmt.Fprintf(&b, "%s://:%s {\nbind 127.0.0.1\n", s.scheme(), ports[i])
		if s.certificate != "" {
			b.WriteString("tls " + s.certificate + "\n")
		}
		fmt.Fprintf(&b, "respond /_gateway %q\n%s}\n", id, s.block())
	}
	return b.String()
}
