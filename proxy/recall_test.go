package proxy

import (
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// What comes from memory is no younger for being given again, however long the check
// takes whether it may be: after its time the store is asked.
func TestCacheIsNoYoungerForWhatItGave(t *testing.T) {
	bubble(t, Config{CacheSize: mib, CacheTTL: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		time.Sleep(9 * time.Second)
		f.check = func(http.ResponseWriter, *http.Request) (bool, error) {
			f.check = nil
			time.Sleep(2 * time.Second)
			f.mem.fail(func(string) error { return errInjected }, nil)
			f.do(request{}).want(t, 503, CodeStoreUnavailable)
			f.mem.fail(nil, nil)
			f.mem.wipe() // as when another gateway forgets the job
			return true, nil
		}
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
	})
}

// What a request has read does not take the place of what was read, or recorded, while
// it was still being checked.
func TestCacheKeepsTheNewer(t *testing.T) {
	bubble(t, Config{CacheSize: mib, CacheTTL: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.do(request{})
		f.route.known = newCache(mib, 10*time.Second)
		f.check = func(http.ResponseWriter, *http.Request) (bool, error) {
			f.check = nil
			time.Sleep(time.Second)
			f.mem.wipe()
			f.do(request{}).wantBody(t, 200, "execution 2", false)
			return true, nil
		}
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.do(request{}).wantBody(t, 200, "execution 2", true)
	})
}

// What a room has read before a request came is not for that request: the job may have
// been forgotten since, here or by another gateway.
func TestRoomShowsNothingOlderThanTheRequest(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		forget func(*fixture) error
	}{
		"here": {Config{CacheSize: mib, CacheTTL: time.Hour}, func(f *fixture) error {
			return f.gateway.Forget(f.t.Context(), f.mem.job().ID, "anna")
		}},
		"elsewhere": {Config{}, func(f *fixture) error { f.mem.wipe(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.config, func(t *testing.T, f *fixture) {
				end := make(chan struct{})
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					f.serve = nil
					<-end
					_, err := w.Write([]byte("execution 1"))
					return err
				}
				go f.do(request{})
				synctest.Wait()
				go f.do(request{}) // it waits
				synctest.Wait()
				f.mem.slowReading(sync.OnceFunc(func() { time.Sleep(2 * time.Second) }))
				close(end)
				synctest.Wait() // the room has read the result, and does not know that yet
				f.mem.slowReading(nil)
				f.mem.turnDeaf() // nothing makes it look again
				if err := c.forget(f); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				f.do(request{}).want(t, 503, CodeRecordLost)
				f.do(request{}).wantBody(t, 200, "execution 2", false)
				f.wantExecutions(2)
			})
		})
	}
}

// All of a job counts that can be of any length.
func TestCacheCountsAllOfAJob(t *testing.T) {
	t.Parallel()
	const length = 1 << 20
	j := &keystore.Job{
		KeySealed: &keystore.Sealed{}, Result: &keystore.Response{},
		Attempts: []keystore.Attempt{{Resolution: &keystore.Resolution{}, Violation: &keystore.Violation{}}},
	}
	before := sizeOf(j)
	texts := 0
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		long := reflect.Value{}
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				visit(path, v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.String:
			long = reflect.ValueOf(strings.Repeat("x", length))
		case reflect.Map:
			long = reflect.ValueOf(map[string][]string{"A": {strings.Repeat("x", length)}})
		case reflect.Slice:
			for i := range v.Len() {
				visit(path, v.Index(i))
			}
			if v.Type().Elem().Kind() == reflect.Uint8 {
				long = reflect.ValueOf(make([]byte, length))
			}
		}
		if !long.IsValid() {
			return
		}
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(long.Convert(v.Type()))
		if sizeOf(j)-before < length {
			t.Errorf("%s does not count", path)
		}
		v.Set(was)
		texts++
	}
	visit("job", reflect.ValueOf(j))
	if texts < 20 {
		t.Errorf("only %d fields were looked at", texts)
	}
}

// A job in memory keeps nothing there of what it is not made of, such as the query in
// the line from which its path is.
func TestCacheKeepsNoQuery(t *testing.T) {
	t.Parallel()
	var method, uri string
	f := newFixture(t, Config{CacheSize: mib, CacheTTL: time.Hour, Label: func(r *http.Request) string {
		method, uri = r.Method, r.RequestURI
		return r.RequestURI[:4]
	}})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		_, err := w.Write(make([]byte, maxPacked+1)) // otherwise there is a copy of all of it
		return err
	}
	f.do(request{url: "http://api.example/pay?" + strings.Repeat("q", 1000)})
	for _, e := range f.route.known.entries {
		asked := e.Value.(*cached).job.Request
		for name, text := range map[string]string{"method": asked.Method, "host": asked.Host, "path": asked.Path, "label": asked.Label} {
			if text == "" || isPartOf(text, method) || isPartOf(text, uri) {
				t.Errorf("the %s %q is a part of the request's first line", name, text)
			}
		}
		return
	}
	t.Error("no job is in memory")
}

// isPartOf reports whether a text is in the memory of another one.
func isPartOf(text, whole string) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(unsafe.Pointer(unsafe.StringData(whole))) //nolint:gosec // read by nobody
	return from <= at && at < from+uintptr(len(whole))
}
