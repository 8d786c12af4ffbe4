package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// load puts other sites into force through the admin API, as a reload does.
func (g *gateway) load(sites ...site) error {
	before := g.sites
	g.sites = sites
	err := g.loadText(g.caddyfile())
	if err != nil {
		g.sites = before
	}
	return err
}

func (g *gateway) loadText(config string) error {
	req, err := http.NewRequest(http.MethodPost, "http://"+g.admin+"/load", strings.NewReader(config))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/caddyfile")
	req.Header.Set("Cache-Control", "must-revalidate") // also if nothing has changed
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return errors.New(string(body))
	}
	return nil
}

func (g *gateway) logPath() string { return filepath.Join(g.dir, "log") }

func (g *gateway) log() string {
	text, err := os.ReadFile(g.logPath())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (g *gateway) logTail() string {
	lines := strings.Split(strings.TrimSpace(g.log()), "\n")
	lines = lines[max(0, len(lines)-40):]
	for i, line := range lines {
		lines[i] = line[:min(len(line), 500)]
	}
	return strings.Join(lines, "\n")
}

// broken are the marks in a log of what must never happen.
var broken = regexp.MustCompile(`DATA RACE|panic: |panic serving|panicked|fatal error:|runtime error`)

// checkLog fails the test if the gateway raced or panicked, and shows the end of
// its log if the test has failed for another reason.
func (g *gateway) checkLog() {
	if at := broken.FindStringIndex(g.log()); at != nil {
		log := g.log()
		g.t.Errorf("the gateway's log says:\n%s", log[at[0]:min(len(log), at[0]+4000)])
	} else if g.t.Failed() {
		g.t.Logf("the gateway's log ends with:\n%s", g.logTail())
	}
}

// stacks returns how many goroutines of the gateway are in a function.
func (g *gateway) stacks(function string) (n int) {
	g.t.Helper()
	status, body, err := get("http://" + g.admin + "/debug/pprof/goroutine?debug=1")
	if err != nil || status != http.StatusOK {
		g.t.Fatalf("gateway: list its goroutines: status %d, %v", status, err)
	}
	_, groups, _ := strings.Cut(body, "\n") // after the profile's headline
	for group := range strings.SplitSeq(strings.TrimSpace(groups), "\n\n") {
		if strings.Contains(group, function) {
			count, _, _ := strings.Cut(group, " @")
			k, err := strconv.Atoi(count)
			if err != nil {
				g.t.Fatalf("gateway: list its goroutines: %v", err)
			}
			n += k
		}
	}
	return n
}

// waiting returns how many duplicates wait in the gateway.
func (g *gateway) waiting() int { return g.stacks("proxy.(*call).wait+") }

// awaitWaiting returns when that many duplicates wait in the gateway.
func (g *gateway) awaitWaiting(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d duplicates wait", n), func() bool { return g.waiting() == n })
}

// metrics returns the gateway's metrics as text.
func (g *gateway) metrics() string {
	g.t.Helper()
	status, body, err := get("http://" + g.admin + "/metrics")
	if err != nil || status != http.StatusOK {
		g.t.Fatalf("gateway: metrics: status %d, %v", status, err)
	}
	return body
}

// counts returns the values of a counter by one of its labels.
func (g *gateway) counts(counter, label string) map[string]int {
	g.t.Helper()
	counts := make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^`+counter+`\{[^}]*`+label+`="([^"]*)"[^}]*\} (\S+)$`).FindAllStringSubmatch(g.metrics(), -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			g.t.Fatalf("gateway: metrics: %v", err)
		}
		counts[m[1]] += int(n)
	}
	return counts
}
