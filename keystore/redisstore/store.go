// Package redisstore keeps the records of jobs in Redis or Valkey.
//
// A job is one string under one key. Creating it is one native command, whose
// loser gets the present record in the same round trip; every later change is
// one small script, a compare-and-swap on the record's write id. Bodies of
// answers above 32 KiB have keys of their own. An index of unresolved jobs and
// a channel for hints complete it.
//
// Keys, all of which begin with [Options.Prefix]:
//
//	j:{<name>}           a job's record; name in hexadecimal
//	r:{<name>}:<token>   the body of an answer, kept apart
//	unresolved           sorted set of the names of unresolved jobs, by lease end
//	wake                 channel for hints that a job has changed
//
// In a cluster all keys of a job are in the slot of its name, which is a digest:
// no client chooses it. No command and no script is about keys of two slots, and
// the index is one key, off the way of a request.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Store keeps records in Redis or Valkey. Create it with [Open].
type Store struct {
	client        redis.UniversalClient // for what is about no key
	servers       servers
	dialer        *dialer
	prefix        string
	timeout       time.Duration // of one try, all that the client makes of it included
	resends       int
	clientRetries int
	poolSize      int
	unshared      bool // no two commands share a round trip
	durability    Durability
	noWaitAOF     atomic.Bool // a server has refused to know that command

	clock    clock
	watchers watchers

	// noSetGet is set once the server has refused SET with both NX and GET.
	noSetGet atomic.Bool

	mu     sync.Mutex // guards closed against calls.Add and background.Add
	closed bool
	done   chan struct{} // closed with the store
	// calls are those in progress, abandoned ones included; background are the
	// goroutines that live as long as the store.
	calls, background sync.WaitGroup
}

var (
	_ keystore.Store        = (*Store)(nil)
	_ keystore.DurableStore = (*Store)(nil)
)

// Open returns a store. It does not wait for the server, which need not be up;
// an error means that the options are wrong.
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	where, opt, err := o.client()
	if err != nil {
		return nil, fmt.Errorf("open redis store: %w", err)
	}
	return open(o, where, opt, new(dialer)), nil
}

func open(o Options, where Servers, opt *redis.UniversalOptions, d *dialer) *Store {
	s := &Store{
		dialer:        d,
		prefix:        o.Prefix,
		timeout:       o.Timeout * time.Duration(1+max(0, o.ClientRetries)),
		resends:       o.Resends,
		clientRetries: o.ClientRetries,
		poolSize:      opt.PoolSize,
		durability:    o.Durability,
		unshared:      o.Unshared,
		done:          make(chan struct{}),
	}
	s.client = s.connect(where, opt)
	s.watchers.init(s)
	s.goBackground(s.keepTime)
	return s
}

// Close ends the store's connections and everything that runs for it. The
// records stay as they are.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	s.mu.Unlock()
	err := s.client.Close()
	s.servers.close()
	s.calls.Wait()
	s.background.Wait()
	s.watchers.wakeAll()
	if err != nil {
		return fmt.Errorf("close redis store: %w", err)
	}
	return nil
}

// enter admits a call, which ends with s.calls.Done.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w, %w", keystore.ErrClosed, keystore.ErrNotApplied)
	}
	s.calls.Add(1)
	return nil
}

// goBackground starts a goroutine that ends when s.done is closed. It reports
// false if the store is closed already.
func (s *Store) goBackground(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.background.Go(f)
	return true
}

func (s *Store) closing() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *Store) recordKey(n keystore.Name) string { return RecordKey(s.prefix, n) }

// RecordKey returns the key that a job's record has under a prefix.
func RecordKey(prefix string, n keystore.Name) string { return prefix + "j:{" + n.String() + "}" }

// Create implements [keystore.Store].
func (s *Store) Create(ctx context.Context, job *keystore.Job) (present *keystore.Job, created bool, err error) {
	const what = "create job"
	record, err := s.encode(ctx, what, job, bodyAnew)
	if err != nil {
		return nil, false, err
	}
	ttl := s.ttl(job)
	if ttl < 0 {
		ttl = 1 // it is none as soon as it is there; but what is there must still be told
	}
	key := s.recordKey(job.Name)
	sends := 0
	found, err := callSized(ctx, s, what, key, record, func(ctx context.Context, n *node) ([]byte, error) {
		sends++
		n, release := s.writer(n)
		defer release()
		found, err := s.create(ctx, n, key, record, ttl)
		if err != nil { // for what is new; a record that is there can still be told
			found, err = n.toldInstead(ctx, key, job.WriteID, err)
		}
		switch {
		case err != nil || !s.durability.on():
			return found, err
		case found == nil:
			return nil, s.acknowledged(ctx, n)
		case sends > 1 || bears(found, job.WriteID):
			// An earlier send may have been applied: what is there is, or may be built
			// on, that write, which is not to be believed in before it is durable.
			return found, s.confirm(ctx, n, key, job.Name, found)
		}
		return found, nil
	})
	if err != nil {
		return nil, errors.Is(err, keystore.ErrNotDurable), err
	}
	if found == nil {
		return nil, true, nil
	}
	id, err := keystore.RecordWriteID(found)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	if id == job.WriteID {
		return nil, true, nil // by an earlier send
	}
	present, err = s.decode(ctx, what, job.Name, found)
	return present, false, err
}

func (s *Store) create(ctx context.Context, n *node, key string, record []byte, ttl int64) ([]byte, error) {
	if s.noSetGet.Load() {
		return createByScript(ctx, n, key, record, ttl)
	}
	found, err := createNatively(ctx, n, key, record, ttl)
	if isSyntaxError(err) {
		s.noSetGet.Store(true)
		return createByScript(ctx, n, key, record, ttl)
	}
	return found, err
}

func createNatively(ctx context.Context, n *node, key string, record []byte, ttl int64) ([]byte, error) {
	args := []any{"set", key, record}
	if ttl > 0 {
		args = append(args, "px", ttl)
	}
	cmd := redis.NewStringCmd(ctx, append(args, "nx", "get")...)
	return bytesOf(cmd, n.do(ctx, cmd))
}

func createByScript(ctx context.Context, n *node, key string, record []byte, ttl int64) ([]byte, error) {
	reply, err := n.run(ctx, createScript, key, record, ttl)
	if err != nil || reply == nil {
		return nil, err
	}
	return recordOf(reply)
}

// isSyntaxError reports whether a server does not understand a command's
// options; those before Redis 7.0 refuse NX together with GET.
func isSyntaxError(err error) bool {
	if err == nil { // what errors.As is given is on the heap
		return false
	}
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(server.Error(), "syntax error")
}

// swapped is the reply to a swap.
type swapped struct {
	done  bool
	found []byte
}

// swappedBy reads the script's reply to a swap, nil for none; resent says that
// it is not the first send that is answered.
func swappedBy(reply any, drops, resent bool) (swapped, error) {
	switch reply {
	case nil:
		// Gone. For a write that deletes, after a send without an answer, that is
		// what it wanted.
		return swapped{done: drops && resent}, nil
	case int64(1):
		return swapped{done: true}, nil
	}
	found, err := recordOf(reply)
	return swapped{found: found}, err
}

// Swap implements [keystore.Store].
func (s *Store) Swap(ctx context.Context, expected keystore.WriteID, job *keystore.Job) (present *keystore.Job, done bool, err error) {
	const what = "swap job"
	ttl := s.ttl(job)
	bodies := bodyReused
	if ttl < 0 {
		bodies = bodyLeftOut
	}
	record, err := s.encode(ctx, what, job, bodies)
	if err != nil {
		return nil, false, err
	}
	tries := 0
	key := s.recordKey(job.Name)
	reply, err := callSized(ctx, s, what, key, record, func(ctx context.Context, n *node) (swapped, error) {
		tries++
		n, release := s.writer(n)
		defer release()
		args := []any{expected.String(), record, ttl, s.channel(), job.Name.String()}
		reply, err := n.run(ctx, swapScript, key, args...)
		if isFull(err) && (settlesLean(job) || expected.IsZero()) { // swapped for itself it takes no memory
			reply, err = n.runFull(ctx, err, swapScript, key, args...)
		}
		if err != nil {
			return swapped{}, err
		}
		r, err := swappedBy(reply, ttl < 0, tries > 1)
		switch {
		case err != nil || !s.durability.on() || ttl < 0:
			return r, err
		case r.done:
			return r, s.acknowledged(ctx, n)
		case r.found != nil && tries > 1: // as in Create
			return r, s.confirm(ctx, n, key, job.Name, r.found)
		}
		return r, nil
	})
	if errors.Is(err, keystore.ErrNotDurable) {
		s.watchers.wake(job.Name)
		return nil, true, err
	}
	if err != nil {
		return nil, false, err
	}
	if reply.done {
		s.letGo(ctx, job.Name, job.Unkept, bodyMargin)
		if ttl < 0 && job.Result != nil && job.Result.Apart != nil {
			s.letGo(ctx, job.Name, []keystore.BodyRef{*job.Result.Apart}, 0) // with its record
		}
	}
	return s.tell(ctx, what, job.Name, reply)
}

// tell returns what a swap has to say, and wakes those who wait here.
func (s *Store) tell(ctx context.Context, what string, name keystore.Name, reply swapped) (present *keystore.Job, done bool, err error) {
	switch {
	case reply.done:
		s.watchers.wake(name)
		return nil, true, nil
	case reply.found == nil:
		return nil, false, nil
	}
	present, err = s.decode(ctx, what, name, reply.found)
	return present, false, err
}

// Get implements [keystore.Store].
func (s *Store) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	const what = "get job"
	found, err := s.get(ctx, what, s.recordKey(name), callShared[[]byte])
	if err != nil || found == nil {
		return nil, err
	}
	return s.decode(ctx, what, name, found)
}

// caller is call, or callShared.
type caller func(ctx context.Context, s *Store, what, key string, e effect, send func(context.Context, *node) ([]byte, error)) ([]byte, error)

// get returns the value of a key, nil for none.
func (s *Store) get(ctx context.Context, what, key string, call caller) ([]byte, error) {
	return call(ctx, s, what, key, reads, func(ctx context.Context, n *node) ([]byte, error) {
		return n.get(ctx, key)
	})
}

func (n *node) get(ctx context.Context, key string) ([]byte, error) {
	cmd := redis.NewStringCmd(ctx, "get", key)
	return bytesOf(cmd, n.do(ctx, cmd))
}

// ttl returns for how many milliseconds a record is to be kept: 0 for ever, -1
// if its expiry is not in the future.
func (s *Store) ttl(job *keystore.Job) int64 {
	if job.Expires.IsZero() {
		return 0
	}
	if left := job.Expires.Sub(s.Now()).Milliseconds(); left > 0 {
		return left
	}
	return -1
}

// bears reports whether a record has this write id.
func bears(record []byte, id keystore.WriteID) bool {
	return len(record) >= keystore.WaiterOffset && string(record[keystore.WriteIDOffset:keystore.WaiterOffset]) == id.String()
}

// bytesOf returns the value of a command that came back with this error, nil for
// none.
func bytesOf(cmd *redis.StringCmd, err error) ([]byte, error) {
	var value []byte
	if err == nil {
		value, err = cmd.Bytes()
	}
	if err == redis.Nil { //nolint:errorlint // never wrapped, and this is a hot path
		return nil, nil
	}
	if err == nil && value == nil {
		value = []byte{} // there, and empty: that is not the same as none
	}
	return value, err
}

// recordOf returns the record that a script replied with.
func recordOf(reply any) ([]byte, error) {
	if record, ok := reply.(string); ok {
		return []byte(record), nil
	}
	return nil, errors.New("unexpected reply of type " + strconv.Quote(fmt.Sprintf("%T", reply)))
}
