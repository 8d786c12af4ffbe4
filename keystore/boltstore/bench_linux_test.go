package boltstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// BenchmarkWriteSync is the floor under [BenchmarkDurableJob]: one page appended
// to a file and synced.
func BenchmarkWriteSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	page := make([]byte, 4096)
	for b.Loop() {
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
}
