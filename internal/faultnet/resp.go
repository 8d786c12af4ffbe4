package faultnet

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readCommand reads one command of a client and returns it as it came, with its
// name in upper case.
func readCommand(in *bufio.Reader) (raw []byte, name string, err error) {
	raw, err = readValue(in)
	if err != nil {
		return nil, "", err
	}
	// *N CRLF $len CRLF name CRLF …
	parts := strings.SplitN(string(raw[:min(len(raw), 128)]), "\r\n", 4)
	if raw[0] != '*' || len(parts) < 3 {
		return raw, strings.ToUpper(strings.TrimSpace(parts[0])), nil // an inline command
	}
	return raw, strings.ToUpper(parts[2]), nil
}

// readValue reads one value of the protocol, version 2 or 3, as it came.
func readValue(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	switch line[0] {
	case '$', '!', '=': // of a given length
		n, err := length(line)
		if err != nil || n < 0 {
			return line, err
		}
		raw := make([]byte, len(line)+n+2)
		copy(raw, line)
		_, err = io.ReadFull(in, raw[len(line):])
		return raw, err
	case '*', '~', '>', '%', '|': // of values
		n, err := length(line)
		if err != nil {
			return nil, err
		}
		if line[0] == '%' || line[0] == '|' {
			n *= 2
		}
		if line[0] == '|' {
			n++ // attributes precede the value they belong to
		}
		raw := line
		for range max(n, 0) {
			value, err := readValue(in)
			if err != nil {
				return nil, err
			}
			raw = append(raw, value...)
		}
		return raw, nil
	default:
		return line, nil
	}
}

func length(line []byte) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	if err != nil {
		return 0, fmt.Errorf("faultnet: length of a value: %w", err)
	}
	return n, nil
}
