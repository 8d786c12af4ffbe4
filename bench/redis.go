package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// startRedis starts a Redis that keeps nothing on the disk, or an append-only file.
func startRedis(ctx context.Context, name, dir string, appendOnly bool) (*process, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	keep := "no"
	if appendOnly {
		keep = "yes"
	}
	return startListening(ctx, name, dir, addr, "redis-server", "--bind", "127.0.0.1", "--port", port,
		"--save", "", "--appendonly", keep, "--appenddirname", name+"-aof", "--dir", dir, "--maxmemory-policy", "noeviction", "--enable-debug-command", "local")
}

// redisConn is a connection for the few commands that are needed here.
type redisConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialRedis(p *process) (*redisConn, error) {
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		return nil, err
	}
	return &redisConn{c, bufio.NewReader(c)}, nil
}

// do sends a command and returns its reply, a string or a number.
func (c *redisConn) do(args ...string) (string, error) {
	_ = c.conn.SetDeadline(time.Now().Add(time.Minute))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[0] {
	case '-':
		return "", errors.New(line[1:])
	case '$':
		n, err := strconv.Atoi(line[1:])
		if err != nil || n < 0 {
			return "", err
		}
		value := make([]byte, n+2)
		_, err = io.ReadFull(c.in, value)
		return string(value[:n]), err
	}
	return line[1:], nil
}

// once sends one command to a Redis.
func once(p *process, args ...string) (string, error) {
	c, err := dialRedis(p)
	if err != nil {
		return "", err
	}
	defer c.conn.Close()
	return c.do(args...)
}

// redisMemory is how many bytes a Redis has in use.
func redisMemory(p *process) (int64, error) {
	info, err := once(p, "INFO", "memory")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			return strconv.ParseInt(n, 10, 64)
		}
	}
	return 0, errors.New("INFO does not say used_memory")
}

// roundTrips measures round trips to a Redis, one every few milliseconds, until
// the context ends.
func roundTrips(ctx context.Context, p *process) (*histogram, error) {
	c, err := dialRedis(p)
	if err != nil {
		return nil, err
	}
	defer c.conn.Close()
	h := new(histogram)
	for tick := time.NewTicker(3 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return h, nil
		case <-tick.C:
		}
		began := time.Now()
		if _, err := c.do("GET", "round-trip"); err != nil {
			return nil, err
		}
		h.add(time.Since(began))
	}
}
