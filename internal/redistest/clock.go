package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

//go:embed preload/clock.c
var clockSource []byte

// Clock is the wall clock of the servers that are started by it. Other programs of
// the machine don't see it. Create it with [NewClock].
type Clock struct {
	t       testing.TB
	file    *os.File
	library string

	mu    sync.Mutex
	ahead time.Duration
}

// NewClock returns a clock that shows the right time. It needs a C compiler.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatalf("redistest: write the clock: %v", err)
	}
	if out, err := exec.Command("gcc", "-O2", "-fPIC", "-shared", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("redistest: compile the clock: %v (install the package gcc)\n%s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "ahead"))
	if err != nil {
		t.Fatalf("redistest: make the clock: %v", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	c := &Clock{t: t, file: file, library: library}
	c.Step(0)
	return c
}

// Step moves the clock, back if the step is negative, and returns how far it is
// ahead of the right time now.
func (c *Clock) Step(by time.Duration) (ahead time.Duration) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += by
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(c.ahead)), 0); err != nil {
		c.t.Fatalf("redistest: set the clock: %v", err)
	}
	return c.ahead
}

// environment is that of a server that lives by the clock.
func (c *Clock) environment() []string {
	return append(os.Environ(), "LD_PRELOAD="+c.library, "REDISTEST_CLOCK="+c.file.Name())
}
