package caddymodule

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
)

func (c *call) readResponseFile(path string) (*givenResponse, error) {
	if path == "-" {
		return readResponse(c.InOrStdin())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readResponse(f)
}

// readResponse reads a response as curl -i prints it: status line, header, empty
// line and body. It is not quite an HTTP/1.1 message, which is why net/http does
// not read it: the status line can say HTTP/2, and the body is there as it is
// meant, even where the header says that it was sent in chunks.
func readResponse(r io.Reader) (*givenResponse, error) {
	in := bufio.NewReader(r)
	for {
		lines := textproto.NewReader(in)
		line, err := lines.ReadLine()
		if err != nil {
			return nil, fmt.Errorf("read the status line: %w", noEOF(err))
		}
		status, err := parseStatusLine(line)
		if err != nil {
			return nil, err
		}
		header, err := lines.ReadMIMEHeader()
		if err != nil {
			return nil, fmt.Errorf("read the header, which ends with an empty line: %w", noEOF(err))
		}
		if status < 200 {
			continue // "100 Continue"; the response comes after it
		}
		body, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		if length := header.Get("Content-Length"); length != strconv.Itoa(len(body)) && beginsWithStatusLine(body) {
			in = bufio.NewReader(bytes.NewReader(body)) // of a proxy or a redirect, from which curl has gone on
			continue
		}
		if length := header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(body)) {
			return nil, fmt.Errorf("the body has %d bytes, and not %s as its Content-Length says; take that header out if the body is right (an editor may have added a line break at its end)",
				len(body), length)
		}
		return &givenResponse{Status: status, Header: http.Header(header), BodyBase64: body}, nil
	}
}

// beginsWithStatusLine reports whether a body looks like another response.
func beginsWithStatusLine(body []byte) bool {
	line, _, _ := bytes.Cut(body, []byte("\n"))
	_, err := parseStatusLine(strings.TrimSuffix(string(line), "\r"))
	return err == nil
}

func parseStatusLine(line string) (int, error) {
	version, rest, _ := strings.Cut(line, " ")
	number, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(number)
	if !strings.HasPrefix(version, "HTTP/") || err != nil || len(number) != 3 {
		return 0, errors.New("it does not begin with a status line such as HTTP/1.1 201 Created")
	}
	return status, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
