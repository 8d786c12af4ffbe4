package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// gateway is one process of the built gateway, with directories of its own: a
// restart finds the same ones.
type gateway struct {
	t      *testing.T
	binary string
	id     string
	dir    string
	global string
	admin  string
	ports  []string
	sites  []site

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
	err  error         // how it ended; to be read when gone is closed
}

// startGateway starts a gateway with one site.
func startGateway(t *testing.T, s site) *gateway {
	t.Helper()
	return startGatewayWith(t, "", s)
}

// startGatewayWith starts a gateway with global options and several sites.
func startGatewayWith(t *testing.T, global string, sites ...site) *gateway {
	t.Helper()
	return startBinary(t, gatewayBinary(t), global, sites...)
}

func startBinary(t *testing.T, binary, global string, sites ...site) *gateway {
	t.Helper()
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		t.Fatalf("gateway: make a directory: %v", err)
	}
	g := &gateway{t: t, binary: binary, id: rand.Text(), dir: dir, global: global, sites: sites}
	t.Cleanup(func() {
		g.kill()
		g.checkLog()
		_ = os.RemoveAll(dir)
	})
	// Programs that know nothing of these ports can take one all the same. Then
	// there are others.
	for range 5 {
		g.admin = "127.0.0.1:" + testport.Take(t)
		g.ports = nil
		for range sites {
			g.ports = append(g.ports, testport.Take(t))
		}
		if err = g.launch(binary); err == nil {
			return g
		}
	}
	t.Fatalf("gateway: %v", err)
	return nil
}

// environment gives the process directories of its own, so that it shares
// nothing with others but what a test lets it share.
func (g *gateway) environment() []string {
	return []string{
		"TMPDIR=" + g.tmp(),
		"HOME=" + g.dir, "XDG_DATA_HOME=" + filepath.Join(g.dir, "data"), "XDG_CONFIG_HOME=" + filepath.Join(g.dir, "config"),
		"PATH=" + os.Getenv("PATH"),
		// A race is an error that ends the process, so that no test passes over it.
		"GORACE=halt_on_error=1",
	}
}

// tmp is where the process puts its temporary files.
func (g *gateway) tmp() string { return filepath.Join(g.dir, "tmp") }

func (g *gateway) launch(binary string) error {
	if err := os.MkdirAll(g.tmp(), 0o700); err != nil {
		return err
	}
	config := filepath.Join(g.dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(g.caddyfile()), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(g.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// Nobody asks it for anything before it says that it has started, as "caddy start"
	// waits for: Caddy's listeners are open before its TLS app is done with starting,
	// and a handshake in between is a data race inside Caddy, on whatever it serves.
	confirm, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer confirm.Close()
	confirmed := make(chan struct{})
	go func() {
		if c, err := confirm.Accept(); err == nil {
			defer c.Close()
			if said, err := io.ReadAll(c); err == nil && string(said) == g.id {
				close(confirmed)
			}
		}
	}()
	cmd := exec.Command(binary, "run", "--config", config, "--adapter", "caddyfile", "--pingback", confirm.Addr().String())
	cmd.Stdin = strings.NewReader(g.id)
	cmd.Env = g.environment()
	cmd.Dir = g.dir
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	g.mu.Lock()
	g.cmd, g.gone = cmd, gone
	g.mu.Unlock()
	go func() {
		g.err = cmd.Wait()
		close(gone)
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-confirmed:
	case <-gone:
		return fmt.Errorf("it ended at once: %w\n%s", g.err, g.logTail())
	case <-late.C:
		g.kill()
		return fmt.Errorf("it did not start within %s\n%s", patience, g.logTail())
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-gone:
			return fmt.Errorf("it ended at once: %w\n%s", g.err, g.logTail())
		default:
		}
		if g.ready() {
			return nil
		}
	}
	g.kill()
	return fmt.Errorf("it did not answer within %s\n%s", patience, g.logTail())
}

func (g *gateway) caddyfile() string {
	return caddyfile(g.id, g.global, g.admin, g.ports, g.sites)
}

// ready reports whether this very gateway answers on its ports.
func (g *gateway) ready() bool {
	for i := range g.ports {
		status, body, err := get(g.url(i) + "/_gateway")
		if err != nil || status != http.StatusOK || body != g.id {
			return false
		}
	}
	return true
}

// get asks on a connection of its own.
func get(url string) (status int, body string, err error) {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	c := http.Client{Transport: transport, Timeout: patience}
	resp, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

// url is that of the gateway's i-th site.
func (g *gateway) url(i int) string { return g.sites[i].scheme() + "://" + g.addr(i) }

func (g *gateway) addr(i int) string { return "127.0.0.1:" + g.ports[i] }

// restart starts a gateway again that has ended, on the same ports and data.
func (g *gateway) restart() {
	g.t.Helper()
	if err := g.launch(g.binary); err != nil {
		g.t.Fatalf("gateway: restart: %v", err)
	}
}

// kill ends the process with SIGKILL, if it is there.
func (g *gateway) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil {
		return
	}
	_ = g.cmd.Process.Kill()
	<-g.gone
	g.cmd = nil
}

// signal sends the process a signal.
func (g *gateway) signal(s syscall.Signal) {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil {
		g.t.Fatalf("gateway: signal %v: it is not running", s)
	}
	if err := g.cmd.Process.Signal(s); err != nil {
		g.t.Fatalf("gateway: signal %v: %v", s, err)
	}
}

// freeze stops the process in its tracks until thaw, as a suspended or stalled
// machine does. It returns when the process has stopped: before, a signal is
// only a wish.
func (g *gateway) freeze() {
	g.t.Helper()
	g.signal(syscall.SIGSTOP)
	eventually(g.t, "the gateway stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
		if err != nil {
			g.t.Fatalf("gateway: state of the process: %v", err)
		}
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		return bytes.HasPrefix(rest, []byte("T"))
	})
}

func (g *gateway) thaw() {
	g.t.Helper()
	g.signal(syscall.SIGCONT)
}

// terminate asks the process to end in good order and waits for that.
func (g *gateway) terminate() error {
	g.t.Helper()
	g.signal(syscall.SIGTERM)
	return g.ended()
}

// ended waits for the process's end, and returns how it ended.
func (g *gateway) ended() error {
	select {
	case <-g.gone:
	case <-time.After(patience):
		return fmt.Errorf("it did not end within %s", patience)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cmd = nil
	return g.err
}
