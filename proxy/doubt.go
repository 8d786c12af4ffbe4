package proxy

import (
	"sync"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// doubts are the names of records of which this gateway's last write ended in an
// error and may be there all the same. Such a write, found there later, was never
// acknowledged as durable: it could be taken for recorded, and then be lost with the
// server that has it. So it is confirmed first, by swapping the record for itself.
type doubts struct {
	mu    sync.Mutex
	names map[keystore.Name]struct{}
}

func (d *doubts) add(name keystore.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = make(map[keystore.Name]struct{})
	}
	if len(d.names) >= maxDoubts {
		for some := range d.names {
			delete(d.names, some)
			break
		}
	}
	d.names[name] = struct{}{}
}

// maxDoubts bounds them: of some writes nobody here ever asks again.
const maxDoubts = 100_000

func (d *doubts) has(name keystore.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, doubted := d.names[name]
	return doubted
}

func (d *doubts) remove(name keystore.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
}
