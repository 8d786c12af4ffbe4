package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Jobs of another route would be looked up at the wrong upstream, where nobody
// knows of them.
func TestReconcilerHasItsSpaceForItself(t *testing.T) {
	const block = "\nreconcile {\nlookup GET /charges\nsucceeded 200\n}"
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	two := func(a, b string) string {
		return site(t, "handle /a {\nidempotency {\nowner shared\n"+a+"\n}\n}\nhandle {\nidempotency {\nowner shared\n"+b+"\n}\n}")
	}
	for name, c := range map[string]struct {
		a, b string
		ok   bool
	}{
		"the same space":          {block, "", false},
		"in the other order":      {"", block, false},
		"by name":                 {block, "space main", false},
		"two reconcilers":         {"space x" + block, "space x" + block, false},
		"another space":           {"space a" + block, "", true},
		"another store":           {"store bolt " + filepath.Join(t.TempDir(), "other.db") + block, "", true},
		"without any reconciling": {"", "", true},
		"redis by its defaults":   {"store redis redis://localhost" + block, "store redis redis://u@LOCALHOST:6379/0", false},
		"redis with TLS":          {"store redis redis://h:6380/1" + block, "store redis rediss://h:6380/1?pool_size=3", false},
		"another database":        {"store redis redis://h/1" + block, "store redis redis://h", true},
		"another port":            {"store redis redis://h" + block, "store redis redis://h:6380", true},
		"bolt by a link":          {"store bolt " + filepath.Join(dir, "new", "x.db") + block, "store bolt " + filepath.Join(link, "new", "x.db"), false},
	} {
		t.Run(name, func(t *testing.T) {
			err := validate(two(c.a, c.b))
			if c.ok && err != nil {
				t.Error(err)
			}
			if !c.ok && (err == nil || !strings.Contains(err.Error(), "`space payments`")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestReconcilerNeedsItsPlaceholders(t *testing.T) {
	b := newBank(t, 200)
	for where, lines := range map[string]string{
		"in the URL":  "lookup GET /charges?token={env.NO_SUCH_TOKEN}",
		"in a header": "lookup GET /charges\nheader Authorization {file./no/such/token}",
		"in the host": "lookup GET {env.NO_SUCH_TOKEN}/charges",
	} {
		err := validate(site(t, b.reconciled("", lines+"\nsucceeded 200")))
		if err == nil || !strings.Contains(err.Error(), "stands for nothing") {
			t.Errorf("%s: %v", where, err)
		}
	}
	t.Setenv("BANK", "ftp://bank.example")
	if err := validate(site(t, b.reconciled("", "lookup GET {env.BANK}/charges\nsucceeded 200"))); err == nil || !strings.Contains(err.Error(), "http://") {
		t.Errorf("ftp: %v", err)
	}
}

// Two owners can use one key; a lookup that asks by it alone may be told of the
// other's job.
func TestLookupByKeyAloneIsWarnedOfWhereOwnersDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		owner, lookup string
		warned        int
	}{
		"by the key":         {"{http.request.header.X-User}", "lookup GET /charges?key={http.idempotency.key}", 1},
		"by the job":         {"{http.request.header.X-User}", "lookup GET /charges?job={http.idempotency.job}", 0},
		"by the job, within": {"{http.request.header.X-User}", "lookup GET /charges\nheader X-Job {http.idempotency.job}", 0},
		"of one owner":       {"shared", "lookup GET /charges?key={http.idempotency.key}", 0},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			load(t, strings.Replace(site(t, "idempotency {\nowner "+c.owner+"\nreconcile {\n"+c.lookup+"\nsucceeded 200\n}\n}"), "output idempotency_test", "output file "+file, 1))
			if n := strings.Count(readFile(t, file), "make sure that keys are unique among all owners"); n != c.warned {
				t.Errorf("%d warnings", n)
			}
		})
	}
}
