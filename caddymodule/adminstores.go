package caddymodule

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// runningApp returns the app of the configuration that runs.
func runningApp() (*App, error) {
	ctx := caddy.ActiveContext()
	app, err := ctx.AppIfConfigured(appName)
	if err != nil {
		return nil, errNotRunning()
	}
	return app.(*App), app.(*App).hasHandlers()
}

func errNotRunning() error {
	return newAdminError(http.StatusServiceUnavailable, codeNotRunning, "the running configuration has no idempotency handler")
}

// hasHandlers is an error if the app has no handler, and so no store.
func (a *App) hasHandlers() error {
	if len(a.openers) == 0 {
		return errNotRunning()
	}
	return nil
}

// adminStore is a store of the running configuration, held for one call.
type adminStore struct {
	*sharedStore
	// name tells it from the others: the module's, such as redis, with a number
	// where there are several of one module.
	name string
	path string // of a store that is a file
	app  *App
	at   storeKey // the place that it is
}

// secrets are those of the space's jobs.
func (s adminStore) secrets(space string) secrets { return s.app.secretsOf(place{s.at, space}) }

// openerName is an opener with the name of its store.
type openerName struct {
	opener StoreOpener
	name   string
}

// namedOpeners returns what opens the app's stores, in an order that depends on
// nothing but the configuration.
func (a *App) namedOpeners() []openerName {
	kinds := make(map[string]int)
	var named []openerName
	for key, opener := range a.openers {
		kinds[key.module]++
		named = append(named, openerName{opener, caddy.ModuleID(key.module).Name()})
	}
	slices.SortFunc(named, func(x, y openerName) int {
		return cmp.Or(cmp.Compare(x.name, y.name), cmp.Compare(x.opener.Settings(), y.opener.Settings()))
	})
	seen := make(map[string]int)
	for i := range named {
		module := keyOf(named[i].opener).module
		if seen[module]++; kinds[module] > 1 {
			named[i].name = fmt.Sprintf("%s-%d", named[i].name, seen[module])
		}
	}
	return named
}

// storesFor returns the store with this name, or all of them. The caller has to
// release them.
func (a *App) storesFor(name string) (stores []adminStore, err error) {
	var names []string
	for _, n := range a.namedOpeners() {
		names = append(names, n.name)
		if name != "" && n.name != name {
			continue
		}
		s, err := acquire(n.opener)
		if err != nil {
			for _, s := range stores {
				s.release()
			}
			return nil, newAdminError(http.StatusServiceUnavailable, codeNoStore, "open store %s: %w", n.name, err)
		}
		store := adminStore{sharedStore: s, name: n.name, app: a, at: locationOf(n.opener)}
		if bolt, ok := n.opener.(*BoltStore); ok {
			store.path = bolt.path
		}
		stores = append(stores, store)
	}
	if len(stores) == 0 {
		return nil, badCall(fmt.Errorf("there is no store %q; there is %s", name, strings.Join(names, ", ")))
	}
	return stores, nil
}

// found is a job and the store that it is in.
type found struct {
	adminStore
	job *keystore.Job
}

func (f found) view() *jobView { return viewOf(f.job, f.name, f.store.Now()) }

// lookIn asks each store of the call for a job. That a store does not answer
// matters only if the job is in none of the others.
func (c *adminCall) lookIn(get func(adminStore) (*keystore.Job, error)) (hit found, err error) {
	var silent, missing error
	var names []string
	for _, s := range c.stores {
		j, err := get(s)
		switch {
		case errors.Is(err, proxy.ErrNoJob):
			missing = err
		case err != nil:
			silent = errors.Join(silent, fmt.Errorf("store %s: %w", s.name, err))
		default:
			hit = found{s, j}
			names = append(names, s.name)
		}
	}
	switch {
	case len(names) > 1:
		return found{}, newAdminError(http.StatusBadRequest, codeAmbiguous,
			"several stores have such a job: %s; say which with ?store=", strings.Join(names, ", "))
	case len(names) == 1:
		return hit, nil
	case silent != nil:
		return found{}, silent
	}
	return found{}, missing
}

// A cursor names the store that the next page is in, and that store's own cursor.

func joinCursor(store, cursor string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(store + "\x00" + cursor))
}

func splitCursor(cursor string) (store, own string, err error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	store, own, ok := strings.Cut(string(text), "\x00")
	if err != nil || !ok {
		return "", "", badCall(errors.New("the cursor is not one that this API has given"))
	}
	return store, own, nil
}
