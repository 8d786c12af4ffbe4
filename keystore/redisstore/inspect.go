package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// ServerState is what a server says of itself, as far as it does. What it did not
// say is empty, or -1.
type ServerState struct {
	Server            string // its address
	Software, Version string
	Role              string // master or slave
	Eviction          string // its maxmemory_policy
	Evicted           int64  // keys, since its start
	MaxMemory, Memory int64  // bytes; MaxMemory 0: no limit
	Replicas          int64  // connected and in step
	AppendOnly        bool
	AppendFsync       string // always, everysec or no
	Snapshots         string // its setting save; "-" for not told
	WriteFailed       bool   // its last try to write to the disk failed
	Clock             time.Duration
	Told              bool // INFO was not refused
	SettingsTold      bool // CONFIG GET was not refused
	FullCoverage      string
	ClusterState      string
	// MissingRights are the commands that our user may not run there.
	MissingRights []string
}

// survey is an inspection with what it was made of.
type survey struct {
	keystore.Inspection
	Servers []ServerState
}

var _ keystore.Inspector = (*Store)(nil)

// Inspect implements [keystore.Inspector]. It asks every server that takes writes
// what it really does. Servers that refuse to tell some of it are no error; an error
// means that none was reached.
func (s *Store) Inspect(ctx context.Context) (keystore.Inspection, error) {
	found, err := s.survey(ctx)
	return found.Inspection, err
}

func (s *Store) survey(ctx context.Context) (survey, error) {
	const what = "inspect the servers"
	return apart(ctx, s, what, func() (survey, error) {
		masters, err := s.masters(ctx, what)
		if err != nil {
			return survey{}, err
		}
		var found survey
		found.At = time.Now()
		for _, n := range masters {
			state, err := s.stateOf(n)
			if err != nil {
				found.Findings = append(found.Findings, keystore.Finding{
					Code: keystore.FindingUnreachable, Severity: keystore.Danger, Server: state.Server, Found: "the server does not answer: " + fateOf(err).text,
					Risk: "requests for its jobs are refused", Remedy: "see why it is down",
				})
				if len(masters) == 1 {
					return found, s.giveUp(what, fateOf(err), false)
				}
				continue
			}
			found.Servers = append(found.Servers, state)
			found.About = append(found.About, state.String())
			found.Bytes += max(state.Memory, 0)
			found.Findings = append(found.Findings, s.judge(state)...)
		}
		if len(found.Servers) == 0 {
			return found, s.giveUp(what, fateOf(errNoReply), false)
		}
		found.Findings = append(found.Findings, judgeAll(found.Servers)...)
		return found, nil
	})
}

// stateOf asks one server.
func (s *Store) stateOf(n *node) (state ServerState, err error) {
	state = ServerState{Server: s.servers.nameOf(n), Evicted: -1, MaxMemory: -1, Memory: -1, Replicas: -1, Snapshots: "-"}
	if err := n.admit(); err != nil {
		return state, err
	}
	ask := func(args ...any) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		defer cancel()
		began := time.Now()
		text, err := n.Do(ctx, args...).Text()
		s.note(ctx, n, began, err)
		if errors.As(err, new(redis.Error)) {
			return "", nil // it refuses to tell
		}
		return text, err
	}
	text, err := ask("info")
	if err != nil {
		return state, err
	}
	if info := parseInfo(text); len(info) > 0 {
		state.Told = true
		state.read(info)
	}
	for _, setting := range []string{"appendfsync", "save", "cluster-require-full-coverage"} {
		value, told, err := s.setting(n, setting)
		if err != nil {
			return state, err
		}
		if !told {
			break
		}
		state.SettingsTold = true
		switch setting {
		case "appendfsync":
			state.AppendFsync = value
		case "save":
			state.Snapshots = value
		default:
			state.FullCoverage = value
		}
	}
	if s.servers.cluster != nil {
		text, err := ask("cluster", "info")
		if err != nil {
			return state, err
		}
		state.ClusterState = parseInfo(text)["cluster_state"]
	}
	if state.MissingRights, err = s.missingRights(n); err != nil {
		return state, err
	}
	if sample, err := s.sampleOf(context.Background(), n); err == nil {
		state.Clock = sample.server.Sub(sample.local.Round(0))
	}
	return state, nil
}

// nameOf returns the address of a server, as far as it is known: sentinels are only
// asked when a connection is made.
func (sv *servers) nameOf(n *node) string {
	if addr := n.Options().Addr; addr != "FailoverClient" {
		return addr
	}
	return ""
}

// setting asks for one of a server's settings. It reports whether that was told.
func (s *Store) setting(n *node, name string) (value string, told bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	all, err := n.ConfigGet(ctx, name).Result()
	if errors.As(err, new(redis.Error)) {
		return "", false, nil
	}
	return all[name], err == nil, err
}

func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func (state *ServerState) read(info map[string]string) {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(info[name], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	state.Software, state.Version = "Redis", info["redis_version"]
	if v := info["valkey_version"]; v != "" {
		state.Software, state.Version = "Valkey", v
	}
	state.Role = info["role"]
	state.Eviction = info["maxmemory_policy"]
	state.Evicted = number("evicted_keys")
	state.MaxMemory, state.Memory = number("maxmemory"), number("used_memory")
	if state.Replicas = number("connected_slaves"); state.Replicas > 0 {
		state.Replicas = 0
		for i := 0; ; i++ {
			replica, ok := info["slave"+strconv.Itoa(i)]
			if !ok {
				break
			}
			if strings.Contains(replica, "state=online") {
				state.Replicas++
			}
		}
	}
	state.AppendOnly = info["aof_enabled"] == "1"
	state.WriteFailed = info["aof_last_write_status"] == "err" || info["rdb_last_bgsave_status"] == "err"
}

// older reports whether a version is known and older than another.
func older(version, than string) bool {
	var v, t [2]int
	if n, _ := fmt.Sscanf(version, "%d.%d", &v[0], &v[1]); n < 2 {
		return false
	}
	_, _ = fmt.Sscanf(than, "%d.%d", &t[0], &t[1])
	return slices.Compare(v[:], t[:]) < 0
}
