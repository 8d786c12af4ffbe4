package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// takeProfile takes a CPU profile of a Caddy with this admin endpoint.
func takeProfile(ctx context.Context, admin string, during time.Duration) ([]byte, error) {
	address := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, max(1, int(during.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("take a CPU profile: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	if err != nil {
		return nil, fmt.Errorf("take a CPU profile: %w", err)
	}
	return b, nil
}

// startProfile profiles a gateway during a round, if that is asked for. The
// function that it returns waits for the profile to be written.
func (l *lab) startProfile(ctx context.Context, target string, c *cell) (wait func() error) {
	admin := l.admins[target]
	if l.options.profile == "" || admin == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		b, err := takeProfile(ctx, admin, c.round)
		if err == nil {
			name := strings.NewReplacer(" ", "-", ",", "").Replace(target + " " + c.name())
			err = os.WriteFile(filepath.Join(l.options.profile, name+".pprof"), b, 0o600)
		}
		done <- err
	}()
	return func() error { return <-done }
}
