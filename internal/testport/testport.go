// Package testport gives tests ports for the servers that they start as processes.
//
// A port that the system picks is free for one moment only: it goes to somebody
// else while a test's server is down, and with SO_REUSEPORT, which Caddy sets,
// two servers then share it without an error, each getting some of the other's
// connections. The ports of this package stay a test's own until it ends.
package testport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// The range is below those from which systems pick ports by themselves, for
// listeners on port 0 and for the near ends of connections.
const lowest, highest = 10000, 32000

// held is an address on which no server of a test listens. Whoever listens on one
// of its ports owns the same port of 127.0.0.1, among all processes that use this
// package.
const held = "127.77.0.1"

// Take returns a TCP port of 127.0.0.1 on which nobody listens, and which no other
// caller gets before the test has ended.
func Take(t testing.TB) string {
	t.Helper()
	port, release, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// Find is [Take] for what is no test: the port is the caller's until it is released.
func Find() (port string, release func(), err error) {
	for range 1000 {
		port = strconv.Itoa(lowest + rand.IntN(highest-lowest))
		release = func() {}
		switch hold, err := net.Listen("tcp", net.JoinHostPort(held, port)); {
		case err == nil:
			release = func() { _ = hold.Close() }
		case errors.Is(err, syscall.EADDRINUSE):
			continue
		default:
			// Systems that give one address only to the loopback interface. There the
			// large range has to do.
		}
		if probe, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			_ = probe.Close()
			return port, release, nil
		}
		release() // somebody else's
	}
	return "", nil, fmt.Errorf("no free port found between %d and %d", lowest, highest)
}
