package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// fate is what an error says of the command it came back for.
type fate struct {
	text       string // of the error, without anything of ours or a client's in it
	notApplied bool   // it was certainly not executed, and will not be
	again      bool   // it is worth sending again
	readOnly   bool   // the server is one that should not be talked to any more
	corrupt    bool   // there is something else under the record's name
	retired    bool   // the connection was too old to send it
	down       bool   // it is a sign that the server does not do its work
	full       bool   // the server has no memory left for it
	noWrites   bool   // the server takes no writes at present, and can be asked all the same
	notDurable bool   // it was executed, but that may yet be lost
	to         hop    // where else the key is; nothing was executed here
}

// redirected reports whether the command has to go elsewhere.
func (f fate) redirected() bool { return f.to.addr != "" }

// scriptError is an error that came back for a script.
type scriptError struct{ error }

func (e scriptError) Unwrap() error { return e.error }

func fateOf(err error) fate {
	if ack, ok := errors.AsType[*ackError](err); ok {
		// That the write was done is known. To send it again is to ask again, unless
		// the answer was definite.
		f := fate{text: ack.text}
		if !errors.Is(ack.err, errShort) {
			f = fateOf(ack.err)
			f.text = ack.text
		}
		f.notApplied, f.notDurable = false, true
		return f
	}
	if server, ok := errors.AsType[redis.Error](err); ok {
		return fateOfReply(server.Error(), errors.As(err, new(scriptError)))
	}
	f := fate{text: err.Error(), again: true}
	switch {
	case errors.Is(err, errRetired):
		f.retired, f.notApplied = true, true
	case errors.Is(err, errRetiredMidway):
		f.retired = true
	case errors.As(err, new(*withdrawnError)):
		f.notApplied, f.down = true, isTimeout(err)
	case errors.As(err, new(*abandonedError)):
		f.down = isTimeout(err)
	case errors.As(err, new(*openError)):
		f.again, f.notApplied = false, true
	case errors.Is(err, redis.ErrClosed):
		f.again, f.notApplied = false, true
	case errors.As(err, new(*routeError)):
		f.notApplied = true // of that, its own breaker takes note
	case errors.As(err, new(*dialError)):
		f.notApplied, f.down = true, true
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		f.notApplied = true // that says more of this side than of the server
	default:
		// A connection that breaks says nothing of the next one.
		f.down = isTimeout(err)
	}
	return f
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// fateOfReply judges an error that the server replied with. To a native command
// that means that it was refused. A script may have done its work before.
func fateOfReply(reply string, script bool) fate {
	code, _, _ := strings.Cut(reply, " ")
	f := fate{text: printable(reply), notApplied: !script}
	switch code {
	case "MOVED", "ASK":
		if to := strings.Fields(reply); len(to) == 3 {
			f.to = hop{addr: addressOf(to[2]), asking: code == "ASK"}
			f.again, f.notApplied = true, true
			return f
		}
	case "LOADING", "MASTERDOWN":
		f.again, f.down = true, true
	case "CLUSTERDOWN":
		f.again = true
		f.down = strings.Contains(reply, "cluster is down") // and not only a slot without a server
	case "NOAUTH", "WRONGPASS":
		f.down = true
	case "TRYAGAIN", "BUSY", "NOREPLICAS":
		f.again = true
	case "ERR":
		f.again = strings.HasPrefix(reply, "ERR max number of clients reached")
	}
	// Errors of commands inside a script are told in another form by every
	// generation of servers; the code stands in all of them.
	switch {
	case strings.Contains(reply, "WRONGTYPE"):
		f.corrupt = true
	case strings.Contains(reply, "READONLY"), strings.Contains(reply, "WAIT cannot be used with replica"):
		f.readOnly, f.again = true, true
		f.notApplied = true // our scripts do nothing before the one write that this refuses
	case strings.Contains(reply, "OOM "):
		f.full, f.notApplied = true, true // likewise
	case code == "MISCONF", code == "NOREPLICAS", script && (strings.Contains(reply, "NOREPLICAS ") || strings.Contains(reply, "MISCONF ")):
		f.noWrites, f.notApplied = true, true // likewise
	case script:
		f.notApplied = refusedBeforeRunning(code, reply)
	}
	return f
}

// addressOf returns the address that a redirection names, as clients write it: servers
// write host:port for every host, also where that has colons in it.
func addressOf(named string) string {
	i := strings.LastIndexByte(named, ':')
	if i < 0 || strings.HasPrefix(named, "[") {
		return named
	}
	return net.JoinHostPort(named[:i], named[i+1:])
}

// refusedBeforeRunning reports whether this error can only have come instead of
// a script's run, and not out of it.
func refusedBeforeRunning(code, reply string) bool {
	switch code {
	case "NOSCRIPT", "BUSY", "LOADING":
		return true
	case "NOPERM", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS":
		return !strings.Contains(reply, "script")
	}
	return strings.HasPrefix(reply, "ERR max number of clients reached")
}

// printable cuts a server's error off where it begins to quote what it was sent.
func printable(reply string) string {
	for _, quote := range []string{", with args", " with args", ", sub"} {
		reply, _, _ = strings.Cut(reply, quote)
	}
	if len(reply) > 200 {
		reply = reply[:200]
	}
	return reply
}
