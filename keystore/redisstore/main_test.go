package redisstore

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain checks that no store leaves a goroutine behind, of its own or of the
// client's.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftGoroutines(); code == 0 && left != "" {
		fmt.Printf("goroutines are left:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

func leftGoroutines() (left string) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		var found []string
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			ours := strings.Contains(stack, "redisstore.(*") || strings.Contains(stack, "go-redis/v9.(*")
			if ours && !strings.Contains(stack, "redisstore.TestMain") {
				found = append(found, stack)
			}
		}
		if left = strings.Join(found, "\n\n"); left == "" {
			return ""
		}
	}
	return left
}
