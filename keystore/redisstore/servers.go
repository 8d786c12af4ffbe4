package redisstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterReload is how old the client's knowledge of a cluster may become.
const clusterReload = time.Second

// node is a server that takes writes, as one call talks to it.
type node struct {
	*redis.Client
	*breaker
	// via is where commands go: the client, or one connection of it.
	via    sender
	fsyncs *fsyncs
	// lanes are where commands share their round trips; nil: this one goes alone.
	lanes *lanes
	// sharing is the same server, with lanes.
	sharing *node
	// asking says that the server has to be told, before each command, that it
	// was named by the one that the key moves away from.
	asking bool
}

type sender interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

func (s *Store) newNode(c *redis.Client) *node {
	n := &node{Client: c, via: c, fsyncs: new(fsyncs), breaker: s.newBreaker(func(ctx context.Context) error {
		// Not PING: a server answers that also when its cluster is down.
		err := c.Get(ctx, s.prefix+"probe").Err()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		s.servers.stale(ctx)
		return err
	})}
	if !s.unshared {
		sharing := *n
		sharing.lanes = newLanes(s, n)
		n.sharing = &sharing
	}
	return n
}

// do sends one command and returns its error.
func (n *node) do(ctx context.Context, cmd redis.Cmder) error {
	if !n.asking {
		if n.lanes != nil {
			return n.lanes.do(ctx, cmd, sizeOf(cmd))
		}
		return n.via.Process(ctx, cmd)
	}
	pipe := n.pipeline(ctx)
	cmd.SetErr(errNoReply)
	_ = pipe.Process(ctx, cmd)
	// That the server does not let itself be asked is not what it says of the command,
	// which may be its own by now.
	if _, err := pipe.Exec(ctx); errors.Is(cmd.Err(), errNoReply) {
		cmd.SetErr(cmp.Or(err, errNoReply))
	}
	return cmd.Err()
}

// pipeline returns a pipeline for commands about keys of this server, or about one
// key where the server has to be asked for it.
func (n *node) pipeline(ctx context.Context) redis.Pipeliner {
	pipe := n.via.Pipeline()
	if n.asking {
		pipe.Do(ctx, "asking")
	}
	return pipe
}

// servers knows which server has which key.
type servers struct {
	one     *node // nil for a cluster
	cluster *redis.ClusterClient
	// discovery is about finding out how the cluster's keys are spread.
	discovery *breaker

	mu    sync.Mutex
	nodes map[string]*node // of a cluster, by address
	// named are the clients for those that a redirection has named before the cluster's
	// own client knew them, and name makes one; nil: not any more, or not yet.
	named map[string]*node
	name  func(addr string) *node
}

// connect makes the clients. It connects to nothing yet.
func (s *Store) connect(where Servers, opt *redis.UniversalOptions) redis.UniversalClient {
	switch {
	case where.Cluster:
		return s.connectCluster(opt)
	case where.Master != "":
		return s.connectSentinels(opt)
	}
	simple := opt.Simple()
	if strings.HasPrefix(simple.Addr, "/") {
		simple.Network = "unix"
	}
	c := redis.NewClient(simple)
	s.dialer.attach(c)
	s.servers.one = s.newNode(c)
	return c
}

func (s *Store) connectSentinels(opt *redis.UniversalOptions) redis.UniversalClient {
	failover := opt.Failover()
	// Sentinels are asked while connecting, and that is bounded by DialTimeout: one
	// that says nothing must leave time for asking the others.
	patience := failover.ReadTimeout
	failover.ReadTimeout = failover.DialTimeout / 4
	c := redis.NewFailoverClient(failover)
	c.Options().ReadTimeout = patience
	s.dialer.attach(c)
	s.servers.one = s.newNode(c)
	return c
}

func (s *Store) connectCluster(opt *redis.UniversalOptions) redis.UniversalClient {
	cluster := opt.Cluster()
	// Every redirection is followed here, and none by the client: it would send
	// again also what may have been executed.
	cluster.MaxRedirects = -1
	cluster.ClusterStateReloadInterval = clusterReload
	sv := &s.servers
	sv.nodes, sv.named = make(map[string]*node), make(map[string]*node)
	connect := func(opt *redis.Options) *redis.Client {
		c := redis.NewClient(opt)
		s.dialer.attach(c)
		return c
	}
	cluster.NewClient = func(opt *redis.Options) *redis.Client {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		sv.name = func(addr string) *node {
			other := *opt
			other.Addr, other.NodeAddress = addr, ""
			return s.newNode(connect(&other))
		}
		return connect(opt)
	}
	sv.cluster = redis.NewClusterClient(cluster)
	// Not before that is the new client as the cluster's wants it.
	sv.cluster.OnNewNode(func(c *redis.Client) {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		sv.nodes[c.Options().Addr] = s.newNode(c)
	})
	sv.discovery = s.newBreaker(func(ctx context.Context) error {
		if _, err := sv.cluster.MasterForKey(ctx, s.indexKey()); err != nil {
			return &routeError{err}
		}
		return nil
	})
	return sv.cluster
}

// target is what a command is for: a key, or a server of a cluster by its address.
type target struct {
	key, addr string
	// shared says that what is sent may share its round trip with others.
	shared bool
}

// hop is where a server has said that a key is.
type hop struct {
	addr   string
	asking bool
}

// find returns the server for a target, as far as is known here or a hop says.
func (sv *servers) find(ctx context.Context, t target, to hop) (*node, error) {
	switch {
	case sv.one != nil:
		return sv.one, nil
	case t.addr != "":
		if n := sv.at(t.addr); n != nil {
			return n, nil
		}
		return nil, &routeError{errors.New("the server is no longer one of the cluster")}
	}
	if n := sv.to(to); n != nil {
		asked := *n
		if asked.asking = to.asking; asked.asking {
			asked.sharing = nil
		}
		return &asked, nil
	}
	if err := sv.discovery.admit(); err != nil {
		return nil, err
	}
	began := time.Now()
	c, err := sv.cluster.MasterForKey(ctx, t.key)
	if err != nil {
		sv.discovery.failed(began, err.Error())
		return nil, &routeError{err}
	}
	sv.discovery.answered()
	return sv.nodeOf(c)
}

func (sv *servers) at(addr string) *node {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	return sv.nodes[addr]
}

// to returns the server that another one has named, nil where only a look at how the
// cluster is now will tell. One that is about to get its first slot is not seen there.
func (sv *servers) to(h hop) *node {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	n := sv.nodes[h.addr]
	if n == nil && h.addr != "" && sv.name != nil && sv.isThere(h.addr) {
		if n = sv.named[h.addr]; n == nil {
			n = sv.name(h.addr)
			sv.named[h.addr] = n
		}
		sv.nodes[h.addr] = n
	}
	return n
}

// isThere reports whether an address means here what it means to the server that has
// named it: its own machine is not ours, unless all are on one.
func (sv *servers) isThere(addr string) bool {
	if !isLoopback(addr) {
		return true
	}
	for known := range sv.nodes {
		if isLoopback(known) {
			return true
		}
	}
	return false
}

func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "" || host == "localhost" || net.ParseIP(host).IsLoopback()
}

// forget forgets a server whose client was closed, as the cluster had no slot there.
func (sv *servers) forget(n *node) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if known := sv.nodes[n.Options().Addr]; known != nil && known.Client == n.Client {
		delete(sv.nodes, n.Options().Addr)
	}
}

// close closes what the cluster's client knows nothing of.
func (sv *servers) close() {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.name = nil
	for _, n := range sv.named {
		_ = n.Client.Close()
	}
}

func (sv *servers) nodeOf(c *redis.Client) (*node, error) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	n := sv.nodes[c.Options().Addr]
	if n == nil || n.Client != c {
		return nil, &routeError{errors.New("the server has just been given up")}
	}
	return n, nil
}

// masters returns all servers that take writes, in an order that lasts as long
// as they do.
func (sv *servers) masters(ctx context.Context) ([]*node, error) {
	if sv.one != nil {
		return []*node{sv.one}, nil
	}
	if err := sv.discovery.admit(); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []*node
	// It looks up how the cluster is now before it begins.
	err := sv.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		n, err := sv.nodeOf(c)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, n)
		return nil
	})
	if err != nil {
		return nil, &routeError{err}
	}
	slices.SortFunc(all, func(a, b *node) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
	return all, nil
}

// stale notes that what is known of a cluster has turned out to be wrong.
func (sv *servers) stale(ctx context.Context) {
	if sv.cluster != nil {
		sv.cluster.ReloadState(ctx)
	}
}

// addr is the server's address in a cluster.
func (n *node) addr() string { return n.Options().Addr }

// spread calls a function for each server that has some of the keys, with the
// positions of these. Keys whose server is down or can't be found are left out.
func (sv *servers) spread(ctx context.Context, keys []string, each func(n *node, some []int)) {
	var nodes []*node
	of := make(map[*redis.Client][]int)
	for i, key := range keys {
		n, err := sv.find(ctx, target{key: key}, hop{})
		if err != nil {
			continue
		}
		if of[n.Client] == nil {
			nodes = append(nodes, n)
		}
		of[n.Client] = append(of[n.Client], i)
	}
	var all sync.WaitGroup
	for _, n := range nodes {
		if n.admit() != nil {
			continue
		}
		if len(nodes) == 1 {
			each(n, of[n.Client])
			return
		}
		all.Go(func() { each(n, of[n.Client]) })
	}
	all.Wait()
}

// masters returns all servers that take writes, and says what it is about where
// they can't be found.
func (s *Store) masters(ctx context.Context, what string) ([]*node, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	all, err := s.servers.masters(ctx)
	if err != nil {
		return nil, s.giveUp(what, fateOf(err), false)
	}
	return all, nil
}
