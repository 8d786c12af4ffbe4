// Package e2e tests the built gateway: processes on the loopback, real Redis
// servers, an upstream that misbehaves when it is told to, and clients. What
// counts in each test is how often the upstream executed.
//
// A test whose name begins with an area and a number (TestCL06…) holds the
// gateway to the rule that its comment states. No test waits for a fixed time
// where it can wait for a condition, and none passes because something was slow.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// patience is how long a condition may take to come true. It is reached only
// when something is broken.
const patience = 60 * time.Second

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "idempotency-e2e"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: make a directory for the gateway's binary:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// buildGateway builds the gateway's binary, once, as the tests themselves were
// built: races in the gateway have to come to light too.
var buildGateway = sync.OnceValues(func() (string, error) { return buildAs("gateway") })

func buildAs(name string, args ...string) (string, error) {
	binary := filepath.Join(buildDir, name)
	args = append([]string{"build", "-o", binary}, args...)
	if raceDetector {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "./gateway")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, out)
	}
	return binary, nil
}

func gatewayBinary(t *testing.T) string {
	t.Helper()
	binary, err := buildGateway()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
