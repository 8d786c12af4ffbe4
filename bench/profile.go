package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// startProfile profiles a gateway during a round, if that is asked for. The
// function that it returns waits for the profile to be written.
func (l *lab) startProfile(target string, c *cell) (wait func()) {
	admin := l.admins[target]
	if l.options.profile == "" || admin == "" {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, max(1, int(c.round.Seconds())))) //nolint:noctx // it ends by itself
		if err != nil {
			return
		}
		defer resp.Body.Close()
		name := strings.NewReplacer(" ", "-", ",", "").Replace(target + " " + c.name())
		f, err := os.Create(filepath.Join(l.options.profile, name+".pprof"))
		if err != nil {
			return
		}
		defer f.Close()
		_, _ = io.Copy(f, resp.Body)
	}()
	return func() { <-done }
}
