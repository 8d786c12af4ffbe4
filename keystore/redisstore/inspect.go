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
)

// Severity says how bad a finding is.
type Severity int

// The severities.
const (
	// Note: worth knowing; nothing that was promised is at risk by it.
	Note Severity = iota
	// Warning: a failure that this setting does not survive can lose a job.
	Warning
	// Danger: jobs get lost in everyday operation, without any failure, or nothing
	// works at all.
	Danger
)

func (s Severity) String() string { return [...]string{"note", "warning", "danger"}[s] }

// Finding is something about a server that matters for what can be promised.
type Finding struct {
	// Code is a stable name, such as eviction.
	Code     string
	Severity Severity
	// Server is its address; empty where it is about all of them.
	Server string
	// Found says what the server does, Risk what can be lost by that, and Remedy
	// what to set instead.
	Found, Risk, Remedy string
}

func (f Finding) String() string {
	text := f.Found
	if f.Server != "" {
		text = f.Server + ": " + text
	}
	for _, more := range []string{f.Risk, f.Remedy} {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

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

// Inspection is what the servers say of themselves, and what that means.
type Inspection struct {
	At       time.Time
	Servers  []ServerState
	Findings []Finding
}

// Worst returns the severity of the worst finding, -1 without any.
func (i Inspection) Worst() Severity {
	worst := Severity(-1)
	for _, f := range i.Findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// Inspect asks every server that takes writes what it really does. Servers that
// refuse to tell some of it are no error; an error means that none was reached.
func (s *Store) Inspect(ctx context.Context) (Inspection, error) {
	const what = "inspect the servers"
	return apart(ctx, s, what, func() (Inspection, error) {
		masters, err := s.masters(ctx, what)
		if err != nil {
			return Inspection{}, err
		}
		found := Inspection{At: time.Now()}
		reached := 0
		for _, n := range masters {
			state, err := s.stateOf(n)
			if err != nil {
				found.Findings = append(found.Findings, Finding{
					Code: "unreachable", Severity: Danger, Server: state.Server, Found: "the server does not answer: " + fateOf(err).text,
					Risk: "requests for its jobs are refused", Remedy: "see why it is down",
				})
				if len(masters) == 1 {
					return found, s.giveUp(what, fateOf(err), false)
				}
				continue
			}
			reached++
			found.Servers = append(found.Servers, state)
			found.Findings = append(found.Findings, s.judge(state)...)
		}
		if reached == 0 {
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
