package caddymodule

import (
	"fmt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The words of the option require_durable.
const (
	durableDanger  = "danger"
	durableWarning = "warning"
)

const durableUsage = "write `require_durable` to refuse requests with a key while a danger stands that loses jobs, or `require_durable warning` to refuse them for warnings of that kind too"

func (p *parser) requireDurable() error {
	args, err := p.args(0, 1, "[danger|warning]")
	if err != nil {
		return err
	}
	p.h.RequireDurable = durableDanger
	if len(args) == 1 {
		p.h.RequireDurable = args[0]
	}
	if _, err := p.h.leastUnfit(); err != nil {
		return p.wrong("require_durable", args, "%s", durableUsage)
	}
	return nil
}

// leastUnfit returns from which severity on a finding is a reason to refuse requests;
// -1 where none is.
func (h *Handler) leastUnfit() (keystore.Severity, error) {
	switch h.RequireDurable {
	case "":
		return -1, nil
	case durableDanger:
		return keystore.Danger, nil
	case durableWarning:
		return keystore.Warning, nil
	}
	return -1, fmt.Errorf("require_durable %s: must be danger or warning; %s", h.RequireDurable, durableUsage)
}

// admission returns what says why requests with a key are refused on this store.
func (h *Handler) admission(on *inspection) func() error {
	least, err := h.leastUnfit()
	if err != nil || least < 0 {
		return nil
	}
	return func() error {
		err := on.durable(least)
		if err != nil {
			select { // it may have been mended
			case on.soon <- struct{}{}:
			default:
			}
			return fmt.Errorf("require_durable: %w", err)
		}
		return nil
	}
}

// requireDurable is how a handler says, while it is provisioned, that its store has
// to be durable.
func (a *App) requireDurable(o StoreOpener, least keystore.Severity) {
	if a.durable == nil {
		a.durable = make(map[storeKey]keystore.Severity)
	}
	key := keyOf(o)
	if others, given := a.durable[key]; given {
		least = min(least, others)
	}
	a.durable[key] = least
}

// unfit says why a store is not as durable as a handler of this configuration
// requires; nil if none does, or it is.
func (a *App) unfit(s *sharedStore) error {
	if least, required := a.durable[s.key]; required {
		return s.inspection.durable(least)
	}
	return nil
}

// checkInspectable refuses a store that has to be durable and can't say so.
func (a *App) checkInspectable(s *sharedStore) error {
	if _, required := a.durable[s.key]; required && s.inspection.store == nil {
		return fmt.Errorf("require_durable: the store %s can't say whether it is durable, so that every request with a key would be refused; use redis or bolt, or remove the option", s.inspection.kind)
	}
	return nil
}
