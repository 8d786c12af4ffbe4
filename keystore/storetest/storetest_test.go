package storetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// memory keeps records in a map. It is the simplest store that keeps every
// promise, and so shows that the suite asks for nothing more.
type memory struct {
	mu      sync.Mutex
	records map[keystore.Name][]byte
	index   map[keystore.Name]keystore.Time
	watches map[*memoryWatch]struct{}
	ahead   time.Duration
}

type memoryWatch struct {
	name keystore.Name
	hint chan struct{}
}

func (m *memory) now() keystore.Time { return keystore.TimeOf(time.Now().Add(m.ahead)) }

func (m *memory) read(name keystore.Name) (*keystore.Job, error) {
	record, ok := m.records[name]
	if !ok {
		return nil, nil
	}
	j, err := keystore.DecodeRecord(name, record)
	if err != nil {
		return nil, err
	}
	if !j.Expires.IsZero() && j.Expires <= m.now() {
		delete(m.records, name)
		return nil, nil
	}
	return j, nil
}

func (m *memory) write(j *keystore.Job) error {
	record, err := keystore.EncodeRecord(j)
	if err != nil {
		return err
	}
	m.records[j.Name] = record
	m.wake(func(w *memoryWatch) bool { return w.name == j.Name })
	return nil
}

func (m *memory) wake(which func(*memoryWatch) bool) {
	for w := range m.watches {
		if which(w) {
			select {
			case w.hint <- struct{}{}:
			default:
			}
		}
	}
}

// gateway is one client of a memory.
type gateway struct {
	*memory
	closed bool
}

func (g *gateway) enter(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		return keystore.ErrClosed
	}
	return ctx.Err()
}

func (g *gateway) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return nil, false, err
	}
	present, err := g.read(j.Name)
	switch {
	case err != nil:
		return nil, false, err
	case present == nil:
		err = g.write(j)
		return nil, err == nil, err
	case present.WriteID == j.WriteID:
		return nil, true, nil
	}
	return present, false, nil
}

func (g *gateway) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return nil, false, err
	}
	present, err := g.read(j.Name)
	switch {
	case err != nil || present == nil:
		return nil, false, err
	case present.WriteID == j.WriteID:
		return nil, true, nil
	case present.WriteID != expected:
		return present, false, nil
	}
	err = g.write(j)
	return nil, err == nil, err
}

func (g *gateway) SwapMany(ctx context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	results := make([]keystore.SwapResult, len(swaps))
	for i, swap := range swaps {
		r := &results[i]
		r.Present, r.Swapped, r.Err = g.Swap(ctx, swap.Expected, swap.Job)
	}
	return results
}

func (g *gateway) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return nil, err
	}
	return g.read(name)
}

func (g *gateway) Index(ctx context.Context, entries ...keystore.IndexEntry) error {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return err
	}
	for _, e := range entries {
		g.index[e.Name] = e.LeaseEnd
	}
	return nil
}

func (g *gateway) List(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return nil, "", err
	}
	var names []keystore.Name
	for name := range g.index {
		names = append(names, name)
	}
	key := func(n keystore.Name) string {
		return g.index[n].Std().Format(time.RFC3339Nano) + n.String()
	}
	slices.SortFunc(names, func(a, b keystore.Name) int { return cmp.Compare(key(a), key(b)) })
	for _, name := range names {
		if key(name) <= cursor {
			continue
		}
		if len(page) == limit {
			return page, next, nil
		}
		if j, err := g.read(name); err == nil && j != nil && j.Unresolved() {
			page = append(page, j)
			next = key(name)
		}
	}
	return page, "", nil
}

func (g *gateway) Scan(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	defer g.mu.Unlock()
	if err := g.enter(ctx); err != nil {
		return nil, "", err
	}
	names := slices.SortedFunc(maps.Keys(g.records), func(a, b keystore.Name) int { return cmp.Compare(a.String(), b.String()) })
	for _, name := range names {
		if name.String() <= cursor {
			continue
		}
		if len(page) == limit {
			return page, next, nil
		}
		if j, err := g.read(name); err == nil && j != nil {
			page = append(page, j)
		}
		next = name.String()
	}
	return page, "", nil
}

func (g *gateway) Watch(_ context.Context, name keystore.Name, seen keystore.WriteID) (<-chan struct{}, func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := &memoryWatch{name, make(chan struct{}, 1)}
	g.watches[w] = struct{}{}
	if j, err := g.read(name); g.closed || err != nil || j == nil || j.WriteID != seen {
		w.hint <- struct{}{}
	}
	return w.hint, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.watches, w)
	}
}

func (g *gateway) Now() keystore.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

func (g *gateway) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.wake(func(*memoryWatch) bool { return true })
	return nil
}

// inMemory makes backends; wrap makes of each client the store to test.
func inMemory(wrap func(*gateway) keystore.Store) func(testing.TB) Backend {
	return func(testing.TB) Backend {
		m := &memory{
			records: make(map[keystore.Name][]byte),
			index:   make(map[keystore.Name]keystore.Time),
			watches: make(map[*memoryWatch]struct{}),
		}
		return Backend{
			Open: func(testing.TB) keystore.Store { return wrap(&gateway{memory: m}) },
			Advance: func(d time.Duration) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.ahead += d
			},
			Garble: func(_ testing.TB, name keystore.Name, raw []byte) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.records[name] = raw
			},
		}
	}
}

func plain(g *gateway) keystore.Store { return g }

func TestConformanceOfMemory(t *testing.T) {
	t.Parallel()
	Run(t, inMemory(plain))
}

func TestLinearizableMemory(t *testing.T) {
	t.Parallel()
	Linearizable(t, inMemory(plain), Load{Operations: 300})
}

// TestLinearizableForgetfulMemory: a store that does its work and then says that
// it does not know is allowed to.
func TestLinearizableForgetfulMemory(t *testing.T) {
	t.Parallel()
	Linearizable(t, inMemory(func(g *gateway) keystore.Store { return &forgetful{Store: g} }), Load{})
}

// TestNaiveStoresAreRejected: each of these stores breaks one promise, and the
// check has to see it.
func TestNaiveStoresAreRejected(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*gateway) keystore.Store{
		"looks and then writes":                          func(g *gateway) keystore.Store { return &looksThenWrites{Store: g, memory: g.memory} },
		"calls a create sent again lost":                 func(g *gateway) keystore.Store { return &losesOwnCreate{Store: g} },
		"swaps whatever is there":                        func(g *gateway) keystore.Store { return &swapsAnything{Store: g} },
		"calls what was applied not applied":             func(g *gateway) keystore.Store { return &deniesWrites{Store: g} },
		"reads what was there before":                    func(g *gateway) keystore.Store { return &readsStale{Store: g} },
		"forgets a record that nobody knows to be there": func(g *gateway) keystore.Store { return &forgetsRecords{Store: g, memory: g.memory} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := record(t, inMemory(wrap)(t), Load{Operations: 300, Keys: 6}.withDefaults())
			if err := check(h); err == nil {
				t.Error("the history of a broken store was taken for that of a good one")
			} else {
				t.Log(err)
			}
		})
	}
}
