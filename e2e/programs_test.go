package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// call is what a client's program is told to do: pay an order, so many times at
// once, with a key of its own or with one that its SDK makes up.
type call struct {
	url, order, key string
	amount, times   int
}

// seen is what a program gets to see of one call.
type seen struct {
	ID       string `json:"id"` // of what it has paid with
	Replayed bool   `json:"replayed"`
	Error    string `json:"error"` // its type
	Status   int    `json:"status"`
	Code     string `json:"code"`
	Message  string `json:"message"`
	Job      string `json:"job"`
}

// String says it in the words of the documentation.
func (s seen) String() string {
	var what string
	switch {
	case s.ID != "":
		what = "`" + s.ID + "`"
	case s.Error == "":
		what = fmt.Sprintf("**no error**, and an object without an `id`, whose `code` is %#q", s.Code)
	case s.Status != 0:
		what = fmt.Sprintf("%#q, status %d", s.Error, s.Status)
		if s.Code != "" {
			what += " `" + s.Code + "`"
		}
	default:
		message, _, _ := strings.Cut(s.Message, " (") // that of Go's goes on with the body
		what = fmt.Sprintf("%#q: %s", s.Error, message)
	}
	if s.Replayed {
		what += ", replayed"
	}
	return what
}

// program is a client of Stripe's API.
type program struct {
	heading string // of its section in the documentation
	// locks is the file that says which version it is of, and pattern finds it there.
	// The documentation has to name that version.
	locks, pattern string
	anyAPI         bool // it knows nothing of Stripe, nor makes up keys
	pay            func(t *testing.T, c call) []seen
}

// version is the version of the SDK, as the documentation names it.
func (p program) version(t *testing.T) string {
	t.Helper()
	if p.locks == "" {
		return ""
	}
	text, err := os.ReadFile(p.locks)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(p.pattern).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s does not say which version", p.locks)
	}
	return string(found[1])
}

// buildClients puts the programs there that use SDKs: from the registries, each at
// the version that its lock file names.
var buildClients = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(buildDir, "clients")
	if err = os.CopyFS(dir, os.DirFS("clients")); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"go", "-C", filepath.Join(dir, "go"), "build", "-o", filepath.Join(dir, "pay"), "."},
		{"npm", "--prefix", filepath.Join(dir, "node"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--prefer-offline"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return dir, nil
})

// sdkProgram runs one of them.
func sdkProgram(command ...string) func(*testing.T, call) []seen {
	return func(t *testing.T, c call) (all []seen) {
		dir, err := buildClients()
		if err != nil {
			t.Error(err)
			return nil
		}
		args := append(slices.Clone(command[1:]), c.url, c.order, strconv.Itoa(c.amount), strconv.Itoa(c.times))
		if c.key != "" {
			args = append(args, c.key)
		}
		cmd := exec.Command(command[0], args...)
		cmd.Dir = dir
		out := output(t, cmd)
		if err := json.Unmarshal(out, &all); err != nil || len(all) != c.times {
			t.Errorf("%v prints %q, want what %d calls have seen: %v", cmd.Args, out, c.times, err)
		}
		return all
	}
}

// output runs a program with nothing of this process's surroundings: an SDK tells
// its server of some that it finds there. Only curl may say by its exit code what
// it has seen.
func output(t *testing.T, cmd *exec.Cmd) []byte {
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && (cmd.Args[0] != "curl" || !ended) {
		t.Errorf("%v: %v\n%s", cmd.Args, err, errs.String())
	}
	return out
}

// curlCommand is the one that the documentation recommends.
var curlCommand = []string{
	"curl", "-sS", "--retry", "3", "--retry-delay", "1", "--retry-all-errors", "--retry-connrefused", "--fail-with-body",
}

// curl pays by curl. Whoever runs it looks at its exit code, and into the file with
// the answer.
func curl(t *testing.T, c call) []seen {
	all := make([]seen, c.times)
	var done sync.WaitGroup
	for i := range all {
		done.Go(func() { all[i] = curlOnce(t, c) })
	}
	done.Wait()
	return all
}

func curlOnce(t *testing.T, c call) (s seen) {
	file := filepath.Join(t.TempDir(), "answer")
	cmd := exec.Command(curlCommand[0], append(curlCommand[1:], "-o", file,
		"-w", "%{http_code}|%header{idempotent-replayed}|%header{idempotency-job}|%{exitcode}",
		"-H", "Authorization: Bearer sk_test_123", "-H", "Idempotency-Key: "+c.key,
		"-d", "amount="+strconv.Itoa(c.amount), "-d", "currency=eur", "-d", "description="+c.order, c.url+"/v1/payment_intents")...)
	said := strings.Split(string(output(t, cmd)), "|")
	if len(said) != 4 {
		t.Errorf("curl prints %q", said)
		return s
	}
	s.Replayed, s.Job = said[1] == "true", said[2]
	s.Status, _ = strconv.Atoi(said[0])
	body, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	var answer struct {
		ID    string
		Error struct{ Code string }
	}
	_ = json.Unmarshal(body, &answer) // an answer may be of another kind
	s.ID, s.Code = answer.ID, answer.Error.Code
	if said[3] != "0" {
		s.Error = "exit code " + said[3]
	}
	return s
}
