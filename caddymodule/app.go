package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// appName is the app's module id.
const appName = "idempotency"

// App opens the stores that the idempotency handlers of a configuration use,
// once each, when the configuration starts. It exists by itself wherever there is
// a handler, and has to be configured only for the settings below.
//
// When the process is exiting, it lets running attempts come to their end,
// within the grace period of the http app; what is still running then is
// recorded as unknown. Without a grace period, which the http app takes for
// endless, they get as long as the longest timeout of the handlers and a little
// more. On a reload nothing is cut.
type App struct {
	// A secret that calls of the admin API under `/idempotency/` have to carry,
	// as `Authorization: Bearer <token>`. Give it as a placeholder, such as
	// `{env.IDEMPOTENCY_ADMIN_TOKEN}` or `{file./run/secrets/token}`, which is
	// replaced when the configuration is loaded: the configuration itself can be
	// read, and replaced, by everybody who reaches all of the admin endpoint.
	// Default: none, so that Caddy's own protection of the endpoint is all there is.
	AdminToken string `json:"admin_token,omitempty"`

	token   *tokenDigest // of the token with its placeholders replaced
	ctx     caddy.Context
	log     slog.Handler
	openers map[storeKey]StoreOpener
	longest time.Duration                  // the longest timeout of the handlers
	durable map[storeKey]keystore.Severity // from where on a finding is too much, where handlers say so
	ready   readiness
	stores  []*sharedStore

	handlers        map[place][]*Handler       // by where they keep their jobs
	statuses        map[place][]*StatusHandler // by where the jobs are that they show
	stopReconcilers context.CancelFunc
	stopProofs      context.CancelFunc

	hasConsole   bool
	stopSampling context.CancelFunc
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  appName,
		New: func() caddy.Module { return new(App) },
	}
}

// Provision sets up the app. It opens nothing.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx = ctx
	a.log = ctx.Slogger().Handler()
	if err := a.provisionToken(); err != nil {
		return err
	}
	if err := metrics.register(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("get the events app: %w", err)
	}
	return events.(*caddyevents.App).On("stopping", a)
}

// appOf returns the app of the configuration that is being provisioned.
func appOf(ctx caddy.Context) (*App, error) {
	app, err := ctx.App(appName)
	if err != nil {
		return nil, fmt.Errorf("get the idempotency app: %w", err)
	}
	return app.(*App), nil
}

// use is how a handler says, while it is provisioned, what it will need.
func (a *App) use(o StoreOpener, timeout time.Duration) {
	if a.openers == nil {
		a.openers = make(map[storeKey]StoreOpener)
	}
	a.openers[keyOf(o)] = o
	a.longest = max(a.longest, timeout)
}

// Start opens the stores, and begins to ask about what is unknown.
func (a *App) Start() error {
	began(a)
	for _, opener := range a.openers {
		s, err := acquire(opener)
		if err != nil {
			return errors.Join(err, a.Cleanup())
		}
		a.stores = append(a.stores, s)
		if err := a.checkInspectable(s); err != nil {
			return errors.Join(err, a.Cleanup())
		}
	}
	if err := a.startReconcilers(); err != nil {
		return errors.Join(err, a.Cleanup())
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stopProofs = stop
	go metrics.proofs.watch(ctx, a.neededProofs())
	if a.hasConsole {
		a.stopSampling = samples.begin(metrics)
	}
	return nil
}

// Stop does nothing. On a reload, requests of this configuration go on, and may
// yet begin attempts. When the process exits, the stopping event has started
// the draining; to wait for its end here could hold up the http app, whose turn
// may come later.
func (a *App) Stop() error { return nil }

// Cleanup ends what runs in the background and gives up the stores.
func (a *App) Cleanup() error {
	if a.stopReconcilers != nil {
		a.stopReconcilers()
	}
	if a.stopSampling != nil {
		a.stopSampling()
	}
	if a.stopProofs != nil {
		a.stopProofs()
	}
	for _, s := range a.stores {
		s.release()
	}
	a.stores = nil
	ended(a)
	return nil
}

// Handle is told when the configuration is about to be stopped.
func (a *App) Handle(context.Context, caddy.Event) error {
	if caddy.Exiting() {
		beginDraining(a.patience())
	}
	return nil
}

// exitMargin is added to the longest timeout for what comes after it: to give
// and to record the answer.
const exitMargin = 5 * time.Second

// patience returns how long servers go on serving after the exit has begun, and
// how long attempts may take from then on.
func (a *App) patience() (delay, grace time.Duration) {
	grace = a.longest + exitMargin
	if app, err := a.ctx.AppIfConfigured("http"); err == nil {
		server := app.(*caddyhttp.App)
		delay = time.Duration(server.ShutdownDelay)
		if server.GracePeriod > 0 {
			grace = time.Duration(server.GracePeriod)
		}
	}
	return delay, grace
}

// Interface guards
var (
	_ caddy.App           = (*App)(nil)
	_ caddy.Provisioner   = (*App)(nil)
	_ caddy.CleanerUpper  = (*App)(nil)
	_ caddyevents.Handler = (*App)(nil)
)
