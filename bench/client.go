package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// key is written like a UUID: a series, and a number in it.
type key [36]byte

func newKey(series uint32, n uint64) (k key) {
	copy(k[:], "ssssssss-0000-4000-8000-nnnnnnnnnnnn")
	var b [8]byte
	binary.BigEndian.PutUint32(b[:4], series)
	hex.Encode(k[:8], b[:4])
	binary.BigEndian.PutUint64(b[:], n)
	hex.Encode(k[24:], b[2:])
	return k
}

// client is one connection that sends one request after the other, each with
// another key. It is made to be cheap: what it costs is missing to what is measured.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	request []byte
	keyAt   int
}

// requestBody is what all requests have as their body.
const requestBody = `{"amount":1000,"currency":"eur","customer":"cus_4f1d9a","description":"order 4711"}`

func newClient(addr, path string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, in: bufio.NewReaderSize(conn, 8<<10)}
	head := "POST " + path + " HTTP/1.1\r\nHost: " + addr + "\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n" +
		"Content-Length: " + strconv.Itoa(len(requestBody)) + "\r\n" + keyHeader + ": "
	c.keyAt = len(head)
	c.request = []byte(head + strings.Repeat("k", len(key{})) + "\r\n\r\n" + requestBody)
	return c, nil
}

func newClients(n int, addr, path string) (clients []*client, err error) {
	for range n {
		c, err := newClient(addr, path)
		if err != nil {
			return clients, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func closeAll(clients []*client) {
	for _, c := range clients {
		_ = c.conn.Close()
	}
}

// answered is what is told of an answer.
type answered struct {
	status   int
	replayed bool
	size     int64
	ours     bool // the body begins with the request's key
}

// answerTime bounds how long an answer may take.
const answerTime = 30 * time.Second

func (c *client) do(k *key) (a answered, err error) {
	copy(c.request[c.keyAt:], k[:])
	if _, err := c.conn.Write(c.request); err != nil {
		return a, err
	}
	return c.read(k)
}

var (
	lengthField   = []byte("content-length:")
	chunkedField  = []byte("transfer-encoding: chunked")
	replayedField = []byte("idempotent-replayed: true")
)

func (c *client) read(k *key) (a answered, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return a, fmt.Errorf("not the head of an answer: %q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, err
	}
	chunked := false
	a.size = -1
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return a, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
			return c.readBody(k, a, chunked)
		case hasPrefixFold(line, lengthField):
			if a.size, err = strconv.ParseInt(string(bytes.TrimSpace(line[len(lengthField):])), 10, 64); err != nil {
				return a, err
			}
		case hasPrefixFold(line, chunkedField):
			chunked = true
		case hasPrefixFold(line, replayedField):
			a.replayed = true
		}
	}
}

func hasPrefixFold(line, prefix []byte) bool {
	return len(line) >= len(prefix) && bytes.EqualFold(line[:len(prefix)], prefix)
}

func (c *client) readBody(k *key, a answered, chunked bool) (answered, error) {
	if !chunked {
		if a.size < 0 {
			return a, errors.New("an answer without a length")
		}
		err := c.part(k, &a, true, int(a.size))
		return a, err
	}
	a.size = 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return a, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 64)
		if err != nil {
			return a, err
		}
		if err := c.part(k, &a, a.size == 0, int(n)); err != nil {
			return a, err
		}
		a.size += n
		if _, err := c.in.Discard(len("\r\n")); err != nil || n == 0 {
			return a, err
		}
	}
}

// part reads n bytes of a body. The first ones are compared with the key.
func (c *client) part(k *key, a *answered, first bool, n int) error {
	if first && n >= len(k) {
		begin, err := c.in.Peek(len(k))
		if err != nil {
			return err
		}
		a.ours = bytes.Equal(begin, k[:])
	}
	_, err := c.in.Discard(n)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
