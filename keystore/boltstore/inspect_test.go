package boltstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestDiskFindings(t *testing.T) {
	t.Parallel()
	const plenty = 100 << 30
	for what, c := range map[string]struct {
		disk disk
		want []string
		says string
	}{
		"a disk":           {disk{1 << 20, plenty, "", time.Millisecond, false}, []string{"note single"}, "if its disk is lost"},
		"nothing known":    {disk{1 << 20, -1, "", -1, false}, []string{"note single"}, ""},
		"memory":           {disk{1 << 20, plenty, "tmpfs", 0, false}, []string{"danger volatile-disk loses", "note single"}, "forgotten when the machine restarts"},
		"a container":      {disk{1 << 20, plenty, "overlayfs", 0, false}, []string{"note single", "warning container-disk loses"}, "put the file on a volume"},
		"another machine":  {disk{1 << 20, plenty, "nfs", 0, false}, []string{"note single", "warning network-disk loses"}, "two gateways"},
		"nearly full":      {disk{1 << 20, 500 << 20, "", 0, false}, []string{"note single", "warning disk-space"}, "500.0 MiB are free"},
		"full":             {disk{1 << 20, 1 << 20, "", 0, false}, []string{"danger disk-space", "note single"}, "make room"},
		"a file elsewhere": {disk{1 << 20, plenty, "", 0, true}, []string{"danger file-gone loses", "note single"}, "move the file back"},
		"slow":             {disk{1 << 20, plenty, "", time.Second, false}, []string{"note single", "note slow-disk"}, "1s"},
		"slow and in need": {disk{1 << 20, 0, "nfs", time.Second, false}, []string{"danger disk-space", "note single", "note slow-disk", "warning network-disk loses"}, ""},
	} {
		var got []string
		text := ""
		for _, f := range c.disk.judge() {
			line := f.Severity.String() + " " + f.Code
			if f.Loses {
				line += " loses"
			}
			if f.Found == "" || f.Risk == "" || f.Remedy == "" {
				t.Errorf("%s: half said: %s", what, f)
			}
			got, text = append(got, line), text+f.String()
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) || !strings.Contains(text, c.says) {
			t.Errorf("%s: got %q, want %q and %q\n%s", what, got, c.want, c.says, text)
		}
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "jobs.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Inspect(context.Background())
	if err != nil || found.At.IsZero() || len(found.About) != 1 || !strings.HasPrefix(found.About[0], path+": a file of ") {
		t.Errorf("got %+v, %v", found, err)
	}
	if !slices.ContainsFunc(found.Findings, func(f keystore.Finding) bool { return f.Code == "single" }) {
		t.Errorf("found %v", found.Findings)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Inspect(context.Background()); !errors.Is(err, keystore.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// What is written to a file that nobody will find again is as good as lost.
func TestInspectFindsThatTheFileIsGone(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	aside := s.path + ".aside"
	for _, step := range []struct {
		what string
		do   func() error
		gone bool
	}{
		{"in its place", func() error { return nil }, false},
		{"moved", func() error { return os.Rename(s.path, aside) }, true},
		{"replaced", func() error { return os.WriteFile(s.path, nil, 0o600) }, true},
		{"put back", func() error { return os.Rename(aside, s.path) }, false},
		{"deleted", func() error { return os.Remove(s.path) }, true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		found, err := s.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		gone := slices.ContainsFunc(found.Findings, func(f keystore.Finding) bool {
			return f.Code == "file-gone" && f.Loses && f.Severity == keystore.Danger
		})
		if gone != step.gone {
			t.Errorf("%s: found %v", step.what, found.Findings)
		}
	}
}
