package boltstore

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestSizing: a job takes about as much of the file as the page on deployment says.
func TestSizing(t *testing.T) {
	t.Parallel()
	const jobs = 4000
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "deployment.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| completed, an answer of 1 KiB \| [0-9,]+ B \| ([0-9,]+) B`).FindSubmatch(page)
	if row == nil {
		t.Fatal("the page does not say it")
	}
	want, err := strconv.ParseFloat(strings.ReplaceAll(string(row[1]), ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "jobs")
	s := openStore(t, path, Options{})
	body := make([]byte, 1<<10)
	var all sync.WaitGroup
	for worker := range 64 {
		all.Go(func() {
			for i := worker; i < jobs; i += 64 {
				j := claimed(fmt.Sprintf("7f9c2ba4-e88f-427d-a9d2-%012d", i), s.Now())
				if _, created, err := s.Create(t.Context(), j); err != nil || !created {
					t.Errorf("create: %t, %v", created, err)
				}
				if _, swapped, err := s.Swap(t.Context(), j.WriteID, completed(j, s.Now(), body)); err != nil || !swapped {
					t.Errorf("swap: %t, %v", swapped, err)
				}
			}
		})
	}
	all.Wait()
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	each := float64(file.Size()) / jobs
	t.Logf("%.0f B; the page says %.0f", each, want)
	// The file grows in steps, by how the writer's batches fall.
	if each < want/2 || each > want*2 {
		t.Errorf("it takes %.0f B, and the page says %.0f", each, want)
	}
}
