package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server that was started for the measurement. It ends with it.
type process struct {
	name  string
	addr  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   string // the file with its output
}

// patience bounds how long a server may take to start.
const patience = 20 * time.Second

// startSaying starts a server that says its address in its first line of output.
func startSaying(name, dir, program string, args ...string) (*process, error) {
	p, stdout, err := start(name, dir, program, args...)
	if err != nil {
		return nil, err
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		said <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case p.addr = <-said:
	case <-time.After(patience):
	}
	if p.addr == "" {
		p.stop()
		return nil, fmt.Errorf("%s has not started: %s", name, p.output())
	}
	return p, nil
}

// startListening starts a server that is told where to listen.
func startListening(ctx context.Context, name, dir, addr, program string, args ...string) (*process, error) {
	p, stdout, err := start(name, dir, program, args...)
	if err != nil {
		return nil, err
	}
	p.addr = addr
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return p, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			p.stop()
			return nil, fmt.Errorf("%s has not started: %s", name, p.output())
		}
	}
}

func start(name, dir, program string, args ...string) (*process, io.Reader, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: exec.Command(program, args...)} //nolint:gosec // what to run is ours
	out, err := os.Create(p.log)
	if err != nil {
		return nil, nil, err
	}
	defer out.Close()
	p.cmd.Stderr = out
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	// Whatever becomes of this process, what it has started ends with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, stdout, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
}

// output is the end of what the process has said.
func (p *process) output() string {
	b, _ := os.ReadFile(p.log)
	return strings.TrimSpace(string(b[max(0, len(b)-2000):]))
}

// cpu is how much CPU time a process has had up to now.
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses, which may have blanks in it.
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("/proc/…/stat has another form than expected")
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ is 100 on Linux
}

func (p *process) cpu() time.Duration {
	d, err := cpu(p.cmd.Process.Pid)
	if err != nil {
		return 0
	}
	return d
}

// memory is how many bytes of a process are in memory and its own alone.
func (p *process) memory() (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("/proc/…/status does not say RssAnon")
}

// freePort picks a port below those from which systems pick by themselves, so that
// none of the many connections takes it before its server does.
func freePort() (string, error) {
	for range 1000 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(20000)))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, l.Close()
		}
	}
	return "", errors.New("no free port found")
}
