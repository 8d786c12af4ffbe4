package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// readyFresh is how long an answer is given again, so that however many ask, the
	// stores are asked once.
	readyFresh = time.Second
	// readyTime bounds how long a store has to answer.
	readyTime = time.Second
)

// readyAnswer says whether new requests with a key should be led here. It tells no
// secrets, so that whoever asks needs no token: neither do load balancers have one.
type readyAnswer struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"` // why not
}

func (a readyAnswer) status() int {
	if a.Ready {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// readiness is the last answer of a configuration.
type readiness struct {
	mu      sync.Mutex // held while the stores are asked, so that others wait for that
	at      time.Time
	reasons []string
}

// ready answers for the configuration that runs.
func ready() readyAnswer {
	if caddy.Exiting() {
		return readyAnswer{Reasons: []string{"the process is about to end"}}
	}
	app, err := runningApp()
	if err != nil {
		return readyAnswer{Reasons: []string{err.Error()}}
	}
	reasons := app.notReady()
	return readyAnswer{len(reasons) == 0, reasons}
}

// notReady says why the configuration is not ready.
func (a *App) notReady() []string {
	a.ready.mu.Lock()
	defer a.ready.mu.Unlock()
	if !a.ready.at.IsZero() && time.Since(a.ready.at) < readyFresh {
		return a.ready.reasons
	}
	a.ready.reasons = a.askStores()
	a.ready.at = time.Now()
	return a.ready.reasons
}

// askStores says which stores don't answer, or are not as durable as they have to be.
func (a *App) askStores() (reasons []string) {
	ctx, cancel := context.WithTimeout(context.Background(), readyTime)
	defer cancel()
	var asking sync.WaitGroup
	named := a.namedOpeners()
	silent := make([]string, len(named))
	for n, one := range named {
		asking.Go(func() {
			s, err := acquire(one.opener)
			if err != nil {
				silent[n] = fmt.Sprintf("store %s can't be opened", one.name)
				return
			}
			defer s.release()
			if !storeAnswers(ctx, s.store) {
				silent[n] = fmt.Sprintf("store %s does not answer", one.name)
			} else if a.unfit(s) != nil {
				silent[n] = fmt.Sprintf("store %s is not durable, or that is not known yet; see caddy idempotency doctor", one.name)
			}
		})
	}
	asking.Wait()
	for _, reason := range silent {
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// storeAnswers reports whether a store answers for some jobs at least: a cluster of
// which a part is down serves the others, here as on every other gateway.
func storeAnswers(ctx context.Context, store keystore.Store) bool {
	const names = 8
	ask := func(n int, most time.Duration) bool {
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		_, err := store.Get(ctx, keystore.NameOf("_ready", "", strconv.Itoa(n)))
		return err == nil
	}
	if ask(0, readyTime/3) {
		return true
	}
	answers := make(chan bool, names)
	for n := 1; n < names; n++ {
		go func() { answers <- ask(n, readyTime) }()
	}
	for n := 1; n < names; n++ {
		if <-answers {
			return true
		}
	}
	return false
}
