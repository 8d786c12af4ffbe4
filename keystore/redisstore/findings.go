package redisstore

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// clockApart is how far a server's clock may be from ours, or from another's,
// before that is worth a word.
const clockApart = 5 * time.Second

// judge says what a server's state means.
func (s *Store) judge(state ServerState) (found []keystore.Finding) {
	say := func(code string, severity keystore.Severity, what, risk, remedy string) {
		found = append(found, keystore.Finding{Code: code, Severity: severity, Server: state.Server, Found: what, Risk: risk, Remedy: remedy, Loses: s.loses(code, state)})
	}
	if len(state.MissingRights) > 0 {
		say("acl", keystore.Danger, "our user may not run "+strings.Join(state.MissingRights, ", ")+" on keys and channels that begin with "+s.prefix,
			"requests with a key are refused, or jobs are not found again", "grant +"+strings.Join(state.MissingRights, " +")+" ~"+s.prefix+"* &"+s.prefix+"*")
	}
	if !state.Told {
		say("untold", keystore.Warning, "the server refuses INFO", "nobody can say whether it evicts jobs or keeps them on a disk",
			"grant +info to the user, or ask your provider for maxmemory-policy, persistence and replicas")
		return found
	}
	s.judgeMemory(state, say)
	s.judgeDisk(state, say)
	s.judgeReplicas(state, say)
	if state.Role == "slave" {
		say("read-only", keystore.Danger, "the server is a replica", "it takes no writes, so that every request with a key is refused",
			"let the address lead to the primary, or use sentinels")
	}
	if state.Software == "Redis" && older(state.Version, "6.2") {
		say("version", keystore.Warning, "the server is Redis "+state.Version, "it was never tested with versions before 6.2", "use Redis 7 or newer, or Valkey")
	}
	if state.Clock.Abs() > clockApart {
		say("clock", keystore.Warning, fmt.Sprintf("the server's clock is %s off this machine's", state.Clock.Round(time.Millisecond)),
			"leases and expiries go by the server's clock: when it is set forward, jobs are forgotten early", "let NTP keep the clocks of all machines")
	}
	if state.ClusterState != "" && state.ClusterState != "ok" {
		say("cluster-down", keystore.Danger, "the cluster's state is "+state.ClusterState, "requests are refused", "see which slots have no master: redis-cli --cluster check")
	}
	if state.FullCoverage == "yes" && s.servers.cluster != nil {
		say("full-coverage", keystore.Note, "the cluster stops as a whole when one slot has no master (cluster-require-full-coverage yes)",
			"while one master is replaced, requests for jobs on all others are refused too", "set cluster-require-full-coverage no")
	}
	return found
}

// loses reports whether an acknowledged job can be lost by a finding. That nothing is
// acknowledged is none of these, and neither is what is over.
func (s *Store) loses(code string, state ServerState) bool {
	switch code {
	case "untold", "eviction", "persistence", "disk", "failover", "minority":
		return true
	case "fsync":
		return s.durability.Replicas == 0 // otherwise a replica has it
	case "evicted":
		return state.Eviction != "noeviction"
	}
	return false
}

type say func(code string, severity keystore.Severity, found, risk, remedy string)

func (s *Store) judgeMemory(state ServerState, say say) {
	limited := state.MaxMemory > 0
	switch policy := state.Eviction; {
	case policy == "":
		say("eviction", keystore.Warning, "the server does not tell its maxmemory_policy", "if it evicts, jobs get lost", "make sure that maxmemory-policy is noeviction")
	case policy == "noeviction":
	case strings.HasPrefix(policy, "allkeys-"):
		severity, what := keystore.Danger, "when its memory is full the server deletes any key (maxmemory-policy "+policy+")"
		if !limited {
			severity, what = keystore.Warning, what+"; it has no limit at present"
		}
		say("eviction", severity, what,
			"jobs that run and results are forgotten without a trace, and what is forgotten is executed again", "set maxmemory-policy noeviction")
	default:
		severity, what := keystore.Danger, "when its memory is full the server deletes keys that would expire (maxmemory-policy "+policy+")"
		if !limited {
			severity, what = keystore.Warning, what+"; it has no limit at present"
		}
		say("eviction", severity, what,
			"finished jobs are forgotten before their retention is over, and a late retry of one is executed again", "set maxmemory-policy noeviction")
	}
	if state.Evicted > 0 {
		say("evicted", keystore.Danger, fmt.Sprintf("the server has deleted %d keys to make room since it started", state.Evicted),
			"jobs may have been among them, and then a repetition is executed again", "set maxmemory-policy noeviction, and give it more memory or a server of its own")
	}
	if limited && state.Memory > state.MaxMemory/10*9 {
		say("memory", keystore.Warning, fmt.Sprintf("the server uses %d MiB of %d", state.Memory>>20, state.MaxMemory>>20),
			"when it is full new keys are refused (503), and answers can't be kept", "raise maxmemory, or shorten retention")
	}
}

func (s *Store) judgeDisk(state ServerState, say say) {
	const lost = "every job is forgotten when the server restarts, and then a repetition is executed again"
	snapshots := state.Snapshots != "" && state.Snapshots != "-"
	switch {
	case !state.AppendOnly && !snapshots && state.SettingsTold:
		say("persistence", keystore.Danger, "the server keeps nothing on its disk", lost, "set appendonly yes, and appendfsync always where it has no replicas")
	case !state.AppendOnly && !snapshots:
		say("persistence", keystore.Warning, "the server has no append-only file, and does not tell whether it makes snapshots",
			"when it restarts, all jobs or those of the last minutes are forgotten, and then a repetition is executed again", "set appendonly yes")
	case !state.AppendOnly:
		say("persistence", keystore.Warning, "the server only makes snapshots", "when it restarts, the jobs since the last one are forgotten, and then a repetition is executed again", "set appendonly yes")
	case s.durability.Fsync && !older(state.Version, "7.2"): // every write waits for the disk itself
	case state.AppendFsync == "everysec":
		say("fsync", keystore.Warning, "the server writes to its disk once per second (appendfsync everysec)",
			"when its machine loses power, the jobs of the last second or two are forgotten, unless a replica has them",
			"set appendfsync always, or let writes wait: durability { fsync }, with Redis 7.2 or newer")
	case state.AppendFsync == "no":
		say("fsync", keystore.Warning, "the server leaves it to its system when to write to the disk (appendfsync no)",
			"when its machine loses power, the jobs of the last half minute are forgotten, unless a replica has them", "set appendfsync always, or at least everysec")
	case state.AppendFsync == "":
		say("fsync", keystore.Note, "the server has an append-only file, and does not tell how it writes it",
			"when its machine loses power, the latest jobs may be forgotten", "make sure that appendfsync is always or everysec")
	}
	if s.durability.Fsync && older(state.Version, "7.2") && state.Software == "Redis" && state.AppendFsync != "always" {
		say("waitaof", keystore.Danger, "durability wants writes on the disk, and Redis "+state.Version+" can't be asked for that (WAITAOF is there from 7.2 on)",
			"no claim counts as durable, so that every request with a key is refused", "set appendfsync always, use a newer server, or leave fsync out")
	}
	if state.WriteFailed {
		say("disk", keystore.Danger, "the server failed to write to its disk", "new writes are refused, or only in its memory", "see its log; is the disk full?")
	}
}

func (s *Store) judgeReplicas(state ServerState, say say) {
	want := int64(s.durability.Replicas)
	switch {
	case state.Replicas < 0:
	case want > state.Replicas:
		say("replicas", keystore.Danger, fmt.Sprintf("durability wants %d replicas, and the server has %d", want, state.Replicas),
			"no claim counts as durable, so that every request with a key is refused", "add replicas, or lower durability replicas")
	case want > 0 && want == state.Replicas:
		say("replicas", keystore.Note, fmt.Sprintf("the server has as many replicas as every write waits for: %d", want),
			"while one of them is away, every request with a key is refused", "add one more")
	case want == 0 && state.Replicas > 0:
		say("failover", keystore.Warning, fmt.Sprintf("the server has %d replicas, and no write waits for them", state.Replicas),
			"in a failover the jobs of the last moments are lost although they were acknowledged, and then a repetition is executed again", "let writes wait: durability { replicas 1 }")
	case state.Replicas == 0:
		say("single", keystore.Note, "the server has no replica", "while it is down every request with a key is refused; if its disk is lost, so are all jobs", "add a replica and sentinels, where that matters")
	}
	// Of n+1 copies, a failover may choose one that is not among those that have
	// acknowledged, unless these are most of them.
	if copies := state.Replicas + 1; want > 0 && state.Replicas > 0 && 2*(want+1) <= copies {
		say("minority", keystore.Warning, fmt.Sprintf("writes wait for %d of %d replicas, which is not most of the copies", want, state.Replicas),
			"a failover that can't see those replicas chooses one without the latest jobs", fmt.Sprintf("set durability replicas %d", copies/2))
	}
}

// judgeAll says what only shows of all servers together.
func judgeAll(servers []ServerState) (found []keystore.Finding) {
	if len(servers) < 2 {
		return nil
	}
	least, most := servers[0].Clock, servers[0].Clock
	for _, s := range servers {
		least, most = min(least, s.Clock), max(most, s.Clock)
	}
	if apart := most - least; apart > clockApart {
		found = append(found, keystore.Finding{
			Code: "clocks", Severity: keystore.Warning, Found: fmt.Sprintf("the clocks of the servers are %s apart", apart.Round(time.Millisecond)),
			Risk: "jobs expire earlier on one than on another", Remedy: "let NTP keep the clocks of all machines",
		})
	}
	return found
}

// String describes the server in a line.
func (state ServerState) String() string {
	var about []string
	say := func(is bool, format string, args ...any) {
		if is {
			about = append(about, fmt.Sprintf(format, args...))
		}
	}
	say(state.Told, "%s %s", state.Software, state.Version)
	say(!state.Told, "tells nothing about itself")
	say(state.Role == "slave", "a replica")
	say(state.Replicas == 0, "no replica")
	say(state.Replicas > 0, "replicas in step: %d", state.Replicas)
	say(state.Told && state.AppendOnly && state.AppendFsync != "", "append-only file (appendfsync %s)", state.AppendFsync)
	say(state.Told && state.AppendOnly && state.AppendFsync == "", "append-only file")
	say(state.Told && !state.AppendOnly && state.Snapshots != "" && state.Snapshots != "-", "snapshots only")
	say(state.Told && !state.AppendOnly && state.Snapshots == "" && state.SettingsTold, "nothing on the disk")
	say(state.Memory >= 0 && state.MaxMemory > 0, "%d of %d MiB used", state.Memory>>20, state.MaxMemory>>20)
	say(state.Memory >= 0 && state.MaxMemory <= 0, "%d MiB used", state.Memory>>20)
	say(state.Eviction != "", "maxmemory-policy %s", state.Eviction)
	text := strings.Join(about, ", ")
	if state.Server != "" {
		text = state.Server + ": " + text
	}
	return text
}
