package caddymodule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

const (
	// proofFresh is how long what was read of a proof is believed. So long may
	// another gateway count on one that this one has just taken back.
	proofFresh = time.Second
	// proofTime bounds how long a request is held up by that.
	proofTime = time.Second
)

// proofs are those that are kept in a store, as they were read last.
type proofs struct {
	get func(context.Context, proxy.ProofSubject, time.Duration) (*proxy.Proof, error)
	now func() keystore.Time

	mu    sync.Mutex
	read  map[proofKey]*readProof
	turns map[proxy.ProofSubject]chan struct{} // held by whoever proves it
}

type proofKey struct {
	subject proxy.ProofSubject
	maxAge  time.Duration
}

// readProof is a proof that was read, or is being read.
type readProof struct {
	done  chan struct{} // closed when it is read
	at    time.Time     // when that began
	proof *proxy.Proof
	err   error
}

func proofsOf(g *proxy.Gateway) *proofs {
	return &proofs{get: g.Proof, now: g.Store().Now, read: make(map[proofKey]*readProof)}
}

// living returns the living proof of a subject, or nil. However many ask, one
// reads it.
func (p *proofs) living(s proxy.ProofSubject, maxAge time.Duration) (*proxy.Proof, error) {
	key := proofKey{s, maxAge}
	p.mu.Lock()
	r := p.read[key]
	if r == nil || time.Since(r.at) >= proofFresh {
		r = &readProof{done: make(chan struct{}), at: time.Now()}
		p.tidy()
		p.read[key] = r
		go p.fill(r, key)
	}
	p.mu.Unlock()
	<-r.done
	if r.err != nil || r.proof == nil || r.proof.Expires <= p.now() {
		return nil, r.err
	}
	return r.proof, nil
}

func (p *proofs) fill(r *readProof, key proofKey) {
	ctx, cancel := context.WithTimeout(context.Background(), proofTime)
	defer cancel()
	defer close(r.done)
	r.proof, r.err = p.get(ctx, key.subject, key.maxAge)
}

// turn waits until nobody else proves the subject here. Two runs at once would cost
// twice, and one that passes could hide that the other one has failed.
func (p *proofs) turn(ctx context.Context, s proxy.ProofSubject) (done func(), err error) {
	p.mu.Lock()
	if p.turns == nil {
		p.turns = make(map[proxy.ProofSubject]chan struct{})
	}
	turn := p.turns[s]
	if turn == nil {
		turn = make(chan struct{}, 1)
		p.turns[s] = turn
	}
	p.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// forget has a subject's proof read anew.
func (p *proofs) forget(s proxy.ProofSubject) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.read {
		if key.subject == s {
			delete(p.read, key)
		}
	}
}

// tidy lets go of what is not believed any more. The caller holds mu.
func (p *proofs) tidy() {
	for key, r := range p.read {
		if time.Since(r.at) >= proofFresh {
			delete(p.read, key)
		}
	}
}

// needsProof reports whether a provider has to be proven before it takes the
// place of another one.
func (h *Handler) needsProof() bool { return h.contract != nil && h.Unproven != unprovenAllow }

// subject is what a proof of a provider would be of.
func (h *Handler) subject(p *Provider) proxy.ProofSubject {
	return proxy.ProofSubject{Space: h.config.Space, Provider: p.Name, Config: p.sum, Contract: h.contract.Digest()}
}

// eligible returns what says why a provider may not take another one's place.
func (h *Handler) eligible(kept *proofs) func(provider string) error {
	if !h.needsProof() {
		return nil
	}
	return func(name string) error {
		p := h.provider(name)
		if p == nil {
			return fmt.Errorf("there is no provider %s", name)
		}
		proof, err := kept.living(h.subject(p), h.Contract.proofMaxAge())
		switch {
		case err != nil:
			return fmt.Errorf("whether provider %s is proven can't be read: %w", name, err)
		case proof == nil:
			return fmt.Errorf("provider %s %s", name, h.unproven(p))
		}
		return nil
	}
}

// shellWord writes a word for a shell.
func shellWord(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// unproven says that a provider is not proven, and what to run so that it is.
func (h *Handler) unproven(p *Provider) string {
	why, flag := "has no living proof of its present configuration and contract", ""
	if slices.ContainsFunc(h.contract.Cases(), func(c *proxy.Case) bool { return !c.Safe }) {
		why, flag = why+"; some of its cases are not marked as safe, and are sent all the same with --unsafe", " --unsafe"
	}
	return fmt.Sprintf("%s; run: caddy idempotency prove --space %s --provider %s%s", why, shellWord(h.config.Space), p.Name, flag)
}
