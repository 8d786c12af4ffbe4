package proxy

import (
	"sync"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// confirmed are the write ids of records that are known here to be as durable as the
// store was told to make them.
type confirmed struct {
	mu  sync.Mutex
	ids map[keystore.WriteID]struct{}
}

// maxConfirmed bounds them. One that is dropped costs another question.
const maxConfirmed = 10_000

func (c *confirmed) add(id keystore.WriteID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = make(map[keystore.WriteID]struct{})
	}
	if len(c.ids) >= maxConfirmed {
		for some := range c.ids {
			delete(c.ids, some)
			break
		}
	}
	c.ids[id] = struct{}{}
}

func (c *confirmed) has(id keystore.WriteID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.ids[id]
	return known
}

// confirm makes sure that a completed record is durable, where the store was told to
// wait for that, before its answer is given out: another gateway may have written it
// a moment ago, and a record that is lost with its server could come to say something
// else. It returns the record that is there by then, nil for none.
func (g *Gateway) confirm(j *keystore.Job) (*keystore.Job, error) {
	if !g.waitsForDurability() || g.confirmed.has(j.WriteID) {
		return j, nil
	}
	present, done, err := g.store.Swap(g.storeContext(), keystore.WriteID{}, j)
	switch {
	case err != nil:
		return nil, err
	case done:
		g.confirmed.add(j.WriteID)
		return j, nil
	}
	return present, nil
}

// waitsForDurability reports whether the store was told to make writes durable.
func (g *Gateway) waitsForDurability() bool {
	d, ok := g.store.(keystore.DurableStore)
	return ok && d.Durable()
}
