package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var _ keystore.Inspector = (*Store)(nil)

// disk is what can be told of the disk that a file is on. What is not known is
// empty, or -1.
type disk struct {
	size int64         // the file's, in bytes
	free int64         // in bytes
	kind string        // the file system's name, of those that matter
	sync time.Duration // how long it takes to have a little on the disk
	gone bool          // the file is no longer where it was opened
}

// Inspect implements [keystore.Inspector].
func (s *Store) Inspect(ctx context.Context) (keystore.Inspection, error) {
	d := disk{free: -1, sync: -1}
	err := s.read(ctx, func(tx *bbolt.Tx) error {
		d.size = tx.Size()
		return nil
	})
	if err != nil {
		return keystore.Inspection{}, fmt.Errorf("inspect %s: %w", s.path, err)
	}
	now, err := os.Stat(s.path)
	d.gone = errors.Is(err, fs.ErrNotExist) || (err == nil && !os.SameFile(s.info, now))
	dir := filepath.Dir(s.path)
	d.free, d.kind = fileSystemOf(dir)
	d.sync = syncTime(dir)
	return keystore.Inspection{At: time.Now(), About: []string{s.path + ": " + d.String()}, Findings: d.judge(), Bytes: d.size}, nil
}

// syncTime measures how long it takes to have a page on the disk, with a file of its
// own: the store's is not ours to touch. It returns -1 where that can't be made.
func syncTime(dir string) time.Duration {
	f, err := os.CreateTemp(dir, ".idempotency-*")
	if err != nil {
		return -1
	}
	defer func() { _ = f.Close() }()
	if runtime.GOOS == "windows" {
		defer func() { _ = os.Remove(f.Name()) }() // not while it is open
	} else {
		_ = os.Remove(f.Name()) // so that a crash leaves nothing
	}
	began := time.Now()
	if _, err := f.Write(make([]byte, os.Getpagesize())); err != nil {
		return -1
	}
	if err := f.Sync(); err != nil {
		return -1
	}
	return time.Since(began)
}

func (d disk) String() string {
	text := fmt.Sprintf("a file of %s", bytesOf(d.size))
	if d.kind != "" {
		text += " on " + d.kind
	}
	if d.free >= 0 {
		text += fmt.Sprintf(", %s free", bytesOf(d.free))
	}
	if d.sync >= 0 {
		text += fmt.Sprintf(", on the disk within %s", d.sync.Round(100*time.Microsecond))
	}
	return text
}

// bytesOf writes a number of bytes with a unit in which it is neither long nor lost.
func bytesOf(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// The limits of what is worth a word.
const (
	littleSpace = 1 << 30
	noSpace     = 32 << 20
	slowSync    = 100 * time.Millisecond
)

// judge says what that means.
func (d disk) judge() (found []keystore.Finding) {
	say := func(code string, severity keystore.Severity, loses bool, what, risk, remedy string) {
		found = append(found, keystore.Finding{Code: code, Severity: severity, Loses: loses, Found: what, Risk: risk, Remedy: remedy})
	}
	const again = ", and then a repetition is executed again"
	if d.gone {
		say("file-gone", keystore.Danger, true, "the file was deleted, moved or replaced while it is in use",
			"every job is forgotten when the server is restarted"+again, "move the file back where it was; if it was deleted, expect that, and restart the server")
	}
	switch d.kind {
	case "tmpfs", "ramfs":
		say("volatile-disk", keystore.Danger, true, "the file lies in the machine's memory ("+d.kind+")",
			"every job is forgotten when the machine restarts"+again, "put the file on a disk: store bolt /var/lib/caddy/idempotency.db")
	case "overlayfs":
		say("container-disk", keystore.Warning, true, "the file lies in the container's own layer (overlayfs)",
			"every job is forgotten when the container is replaced"+again, "put the file on a volume")
	case "nfs", "smb":
		say("network-disk", keystore.Warning, true, "the file lies on another machine ("+d.kind+")",
			"locks and writes there are not always what they seem: jobs can be lost, or two gateways open the file", "put the file on a disk of this machine, or use Redis")
	}
	switch {
	case d.free < 0:
	case d.free < noSpace:
		say("disk-space", keystore.Danger, false, "the disk is full: "+bytesOf(d.free)+" are free",
			"requests with a key are refused when nothing more can be written", "make room")
	case d.free < littleSpace:
		say("disk-space", keystore.Warning, false, "the disk is nearly full: "+bytesOf(d.free)+" are free",
			"when it is full, requests with a key are refused", "make room, or shorten retention")
	}
	if d.sync > slowSync {
		say("slow-disk", keystore.Note, false, fmt.Sprintf("it took %s to have a page on the disk", d.sync.Round(time.Millisecond)),
			"every request with a new key waits for that at least twice", "use a faster disk")
	}
	say("single", keystore.Note, false, "the store is one file on this machine",
		"while the machine is down its jobs can't be reached; if its disk is lost, so are all jobs", "use Redis with replicas, where that matters")
	return found
}
