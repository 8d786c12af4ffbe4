package boltstore

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// crashingFile, set in the environment, turns the test binary into a process
// that claims and commits jobs in that file until it is killed.
const crashingFile = "BOLTSTORE_CRASHING_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashingFile); path != "" {
		if err := claimUntilKilled(path, os.Getenv("BOLTSTORE_ROUND")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// claimUntilKilled prints a line for every write that was acknowledged: the
// job's key, its state and the write id.
func claimUntilKilled(path, round string) error {
	s, err := Open(path, Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	failures := make(chan error)
	for client := range 16 {
		go func() {
			failures <- func() error {
				for i := 0; ; i++ {
					key := fmt.Sprint(round, "-", client, "-", i)
					j := claimed(key, s.Now())
					if _, _, err := s.Create(ctx, j); err != nil {
						return err
					}
					say(key, "claimed", j.WriteID)
					next := completed(j, s.Now(), killedBody(key))
					if _, _, err := s.Swap(ctx, j.WriteID, next); err != nil {
						return err
					}
					say(key, "completed", next.WriteID)
				}
			}()
		}()
	}
	return <-failures
}

// killedBody is the answer of a job: of each client's first and every tenth after that
// one in pieces.
func killedBody(key string) []byte {
	times := 50
	if strings.HasSuffix(key, "0") {
		times = 10_000
	}
	return []byte(strings.Repeat(key, times))
}

// say writes one line at once, so that it has left the process when it returns.
func say(key, state string, id keystore.WriteID) {
	_, _ = os.Stdout.WriteString(key + " " + state + " " + id.String() + "\n")
}

// What was acknowledged is there after the process was killed, in whatever
// moment.
func TestKilled(t *testing.T) {
	t.Parallel()
	const rounds = 8
	path := filepath.Join(t.TempDir(), "jobs.db")
	last := make(map[string][2]string) // key → state and write id acknowledged last
	for round := range rounds {
		killWhileWriting(t, path, round, last)
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for key, acknowledged := range last {
			got, err := s.Get(t.Context(), keystore.NameOf("main", "alice", key))
			if err != nil || got == nil {
				t.Fatalf("round %d: %s was acknowledged as %s: got %v, error %v", round, key, acknowledged[0], got, err)
			}
			completed := got.State(s.Now()) == keystore.JobCompleted
			switch {
			case completed && !bytes.Equal(got.Result.Body, killedBody(key)):
				t.Errorf("round %d: the body of %s differs", round, key)
			case acknowledged[0] == "completed" && !completed:
				t.Errorf("round %d: %s was acknowledged as completed and is %s", round, key, got.State(s.Now()))
			case completed == (acknowledged[0] == "completed") && got.WriteID.String() != acknowledged[1]:
				t.Errorf("round %d: %s has write id %s, acknowledged was %s", round, key, got.WriteID, acknowledged[1])
			}
		}
		wantRecord(t, s, keystore.NameOf("main", "alice", "never"), nil)
		if got := entries(t, s); got["jobs"] < len(last) {
			t.Errorf("round %d: %d jobs, %d were acknowledged", round, got["jobs"], len(last))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d jobs acknowledged over %d crashes", len(last), rounds)
}

// killWhileWriting runs a writing process, kills it after a random number of
// acknowledged writes, and notes all it said.
func killWhileWriting(t *testing.T, path string, round int, last map[string][2]string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), crashingFile+"="+path, fmt.Sprint("BOLTSTORE_ROUND=", round))
	var stderr strings.Builder
	child.Stderr = &stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() { _ = child.Process.Kill() })
	defer kill()
	lines := bufio.NewScanner(stdout)
	said := 0
	for after := 1 + rand.IntN(400); lines.Scan(); said++ {
		if said == after {
			kill()
		}
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && len(fields[2]) == 32 { // the last line may be cut
			last[fields[0]] = [2]string{fields[1], fields[2]}
		}
	}
	_ = child.Wait()
	if stderr.Len() > 0 || said == 0 {
		t.Fatalf("round %d: the process said %d lines and failed: %s", round, said, stderr.String())
	}
}
