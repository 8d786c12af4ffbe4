package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// phpScript counts an execution, waits for a gate if it is told to, and answers
// with what it has seen.
const phpScript = `<?php
$case = basename($_SERVER['HTTP_UP_CASE']);
file_put_contents(dirname(__DIR__) . "/count-$case", getmypid() . "\n", FILE_APPEND | LOCK_EX);
while (isset($_SERVER['HTTP_UP_HOLD']) && !file_exists(dirname(__DIR__) . '/' . basename($_SERVER['HTTP_UP_HOLD']))) {
	clearstatcache();
	usleep(5000);
}
http_response_code(isset($_SERVER['HTTP_UP_STATUS']) ? (int) $_SERVER['HTTP_UP_STATUS'] : 200);
header('Link: </1>; rel=a');
header('Link: </2>; rel=b', false);
setcookie('session', 'x');
header('Content-Type: application/json');
echo json_encode([
	'method' => $_SERVER['REQUEST_METHOD'], 'uri' => $_SERVER['REQUEST_URI'], 'length' => $_SERVER['CONTENT_LENGTH'],
	'key' => $_SERVER['HTTP_IDEMPOTENCY_KEY'], 'attempt' => strtok($_SERVER['HTTP_IDEMPOTENCY_ATTEMPT'], ';'),
	'sum' => hash('sha256', file_get_contents('php://input')), 'random' => bin2hex(random_bytes(8)),
]);
`

// php is a PHP application, run by a php-fpm of its own.
type php struct {
	t    *testing.T
	dir  string
	log  bytes.Buffer
	cmd  *exec.Cmd
	gone chan struct{}
}

// phpFPM returns the program, whose name has PHP's version in it on many systems.
func phpFPM(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"php-fpm", "php-fpm[0-9]*"} {
		for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin") {
			if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
				return found[len(found)-1]
			}
		}
	}
	t.Fatal("php-fpm is missing; install the package of that name")
	return ""
}

// newPHP makes an application that nobody runs yet.
func newPHP(t *testing.T) *php {
	t.Helper()
	// Not the test's own directory, whose name can be too long for a socket's.
	dir, err := os.MkdirTemp("", "php")
	if err != nil {
		t.Fatal(err)
	}
	p := &php{t: t, dir: dir}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("php-fpm's log:\n%s", p.log.String())
		}
		_ = os.RemoveAll(dir)
	})
	config := fmt.Sprintf("[global]\nerror_log = /dev/stderr\ndaemonize = no\n[www]\nlisten = %s\npm = static\npm.max_children = 3\n", p.socket())
	if os.Getuid() == 0 {
		config += "user = root\ngroup = root\n"
	}
	p.write("fpm.conf", config)
	p.write("site/index.php", phpScript)
	return p
}

func (p *php) socket() string { return filepath.Join(p.dir, "fpm.sock") }

func (p *php) write(name, content string) {
	p.t.Helper()
	name = filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// start runs the application.
func (p *php) start() {
	p.t.Helper()
	args := []string{"--nodaemonize", "--no-php-ini", "--fpm-config", filepath.Join(p.dir, "fpm.conf")}
	if os.Getuid() == 0 {
		args = append(args, "--allow-to-run-as-root")
	}
	p.cmd = exec.Command(phpFPM(p.t), args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatalf("php-fpm: %v", err)
	}
	p.gone = make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(p.gone)
	}()
	eventually(p.t, "php-fpm listens", func() bool {
		select {
		case <-p.gone:
			p.t.Fatalf("php-fpm has ended:\n%s", p.log.String())
		default:
		}
		_, err := os.Stat(p.socket())
		return err == nil
	})
}

// stop ends php-fpm, which ends its workers and takes its socket away.
func (p *php) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(patience):
		p.t.Errorf("php-fpm did not end")
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
	p.cmd = nil
}

// workers are the processes that have executed a case, one for each execution.
func (p *php) workers(name string) []string {
	all, _ := os.ReadFile(filepath.Join(p.dir, "count-"+name))
	return strings.Fields(string(all))
}

func (p *php) want(name string, n int) {
	p.t.Helper()
	if got := len(p.workers(name)); got != n {
		p.t.Errorf("%q was executed %d times, want %d", name, got, n)
	}
}

func (p *php) reached(name string) {
	p.t.Helper()
	eventually(p.t, "PHP executes "+name, func() bool { return len(p.workers(name)) == 1 })
}

func (p *php) site() site {
	return site{handler: "root * " + filepath.Join(p.dir, "site") + "\nphp_fastcgi unix/" + p.socket()}
}

// A PHP application behind php_fastcgi is executed once for each key, with the
// body as it was sent, also where the client doesn't announce its length.
func TestPHPExecutesOnce(t *testing.T) {
	t.Parallel()
	p := newPHP(t)
	p.start()
	g := startGateway(t, p.site())
	c := g.client()
	large := strings.Repeat("0123456789abcdef", 64<<10)
	for key, change := range map[string]func(*request){
		"php":       func(*request) {},
		"php-empty": func(r *request) { r.body = "" },
		"php-large": func(r *request) { r.body = large },
		"php-put":   func(r *request) { r.method, r.path = http.MethodPut, "/orders/1?a=%2F" },
		"php-form":  func(r *request) { r.contentType, r.body = "application/x-www-form-urlencoded", "a=1&b=2" },
		"php-422":   func(r *request) { r.headers.Set("Up-Status", "422") },
		"php-500":   func(r *request) { r.headers.Set("Up-Status", "500") },
	} {
		r := post(key).as(change)
		first := c.do(r)
		if first.err != nil || first.job() == "" || first.replayed() || len(first.header["Link"]) != 2 || first.header.Get("Set-Cookie") == "" {
			t.Fatalf("%s: want PHP's answer, got %d %v %s, %v", key, first.status, first.header, first.body, first.err)
		}
		again := c.do(r)
		wantReplay(t, first, again)
		if len(again.header["Link"]) != 2 || again.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: the replay's header is %v", key, again.header)
		}
		for _, part := range []string{
			fmt.Sprintf(`"method":%q`, r.method), fmt.Sprintf(`"length":"%d"`, len(r.body)), fmt.Sprintf(`"key":%q,"attempt":"1"`, key),
			fmt.Sprintf(`"sum":%q`, sum(r.body)),
		} {
			if !strings.Contains(first.body, part) {
				t.Errorf("%s: PHP has seen %s, want %s", key, first.body, part)
			}
		}
		p.want(key, 1)
	}

	chunked, err := sendByHand(g.addr(0), sending{
		method: http.MethodPost, target: "/", host: "shop.example", body: []byte(large), framing: "unannounced",
		fields: []field{{"X-Owner", "alice"}, {"Idempotency-Key", "php-chunked"}, {"Up-Case", "php-chunked"}},
	})
	if err != nil || chunked.value("status") != "200" {
		t.Errorf("a chunked request was answered with %v, %v", chunked, err)
	}
	p.want("php-chunked", 1)
}

// Repetitions that come while PHP is at work wait for it.
func TestPHPRepetitionsWait(t *testing.T) {
	t.Parallel()
	p := newPHP(t)
	p.start()
	g := startGateway(t, p.site())
	c := g.client()
	r := post("slow").tell("Up-Hold", "gate")
	first := c.start(r)
	p.reached("slow")
	waiters := []*pending{c.start(r), c.start(r), c.start(r)}
	g.awaitWaiting(len(waiters))
	p.write("gate", "")
	wantExecuted(t, first.answer())
	for _, w := range waiters {
		wantReplay(t, first.answer(), w.answer())
	}
	p.want("slow", 1)
}

// FastCGI's transport reports nothing of its connections. That php-fpm wasn't
// there is known all the same: the request can be tried again.
func TestPHPThatIsNotThereHasExecutedNothing(t *testing.T) {
	t.Parallel()
	p := newPHP(t)
	c := startGateway(t, p.site()).client()
	down := c.do(post("down"))
	if down.err != nil || down.status != http.StatusBadGateway || down.job() == "" {
		t.Fatalf("want 502 from Caddy with the job's id, got %d %v %s, %v", down.status, down.header, down.body, down.err)
	}
	p.start()
	a := c.do(post("down"))
	wantExecuted(t, a)
	if !strings.Contains(a.body, `"attempt":"2"`) || a.job() != down.job() {
		t.Errorf("want the second attempt of job %s, got %s of %s", down.job(), a.body, a.job())
	}
	wantReplay(t, a, c.do(post("down")))
	p.want("down", 1)
}

// A worker that dies at work may have done it.
func TestPHPThatDiesAtWorkIsUnknown(t *testing.T) {
	t.Parallel()
	p := newPHP(t)
	p.start()
	c := startGateway(t, p.site()).client()
	r := post("dies").tell("Up-Hold", "never")
	first := c.start(r)
	p.reached("dies")
	pid, err := strconv.Atoi(p.workers("dies")[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill the worker: %v", err)
	}
	wantUnknown(t, first.answer())
	wantUnknown(t, c.do(r))
	p.want("dies", 1)
	wantExecuted(t, c.do(post("next")))
}

func sum(body string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(body))) }
