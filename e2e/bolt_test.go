package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// The embedded store's file belongs to one process. Another one that is told to
// use it ends at once and says which file it is about; the first is not troubled.
func TestBoltFileBelongsToOneProcess(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	path := filepath.Join(t.TempDir(), "jobs.db")
	c := startGateway(t, to(up).on("bolt "+path)).client()
	a := c.do(post("held"))
	wantExecuted(t, a)

	second := &gateway{t: t, id: "second", dir: t.TempDir(), admin: "127.0.0.1:" + testport.Take(t), ports: []string{testport.Take(t)}, sites: []site{to(up).on("bolt " + path)}}
	t.Cleanup(second.kill)
	began := time.Now()
	err := second.launch(gatewayBinary(t))
	if err == nil {
		t.Fatal("two processes have the file")
	}
	if last := lastLine(second.log()); !strings.Contains(last, path) {
		t.Errorf("the error does not name the file %s:\n%s", path, last)
	}
	t.Logf("it took %s to say so", time.Since(began).Round(time.Millisecond))
	wantReplay(t, a, c.do(post("held")))
	up.want("held", 1)
}
