package proxy

import (
	"errors"
	"testing"
)

// Where the surroundings say that no request with a key is served, nothing is asked
// of the store and nothing is sent; requests without a key pass.
func TestAdmit(t *testing.T) {
	var why error
	bubble(t, Config{Admit: func() error { return why }}, func(t *testing.T, f *fixture) {
		f.do(request{key: "before"}).want(t, 200, "")
		f.wantExecutions(1)
		asked := len(f.mem.ops)
		why = errors.New("the store is not durable")
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.do(request{key: "before"}).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(1)
		if len(f.mem.ops) != asked {
			t.Errorf("the store was asked: %v", f.mem.ops[asked:])
		}
		f.do(request{key: "none"}).want(t, 200, "")
		f.wantExecutions(2)
		why = nil
		f.do(request{}).want(t, 200, "")
		f.wantExecutions(3)
	})
}
