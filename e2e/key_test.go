package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// sendLines sends a POST of alice with these header lines, just as they are.
func sendLines(t *testing.T, g *gateway, site int, name string, lines ...string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url(site), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(conn, "POST /pay HTTP/1.1\r\nHost: shop.example\r\nX-Owner: alice\r\nUp-Case: %s\r\nContent-Length: 1\r\nConnection: close\r\n%s\r\n1",
		name, strings.Join(append(lines, ""), "\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
}

// FP-08: no key is no key at all, and never one that all who send none share. A
// header without a key in it is a mistake, which must not switch protection off.
func TestFP08NoKeyIsNotAKey(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up), to(up).with("key", "required"))
	for range 2 {
		if a := sendLines(t, g, 0, "optional"); a.status != http.StatusOK || a.job() != "" || a.replayed() {
			t.Errorf("without a key: got %d %v", a.status, a.header)
		}
		wantRefusal(t, sendLines(t, g, 1, "required"), http.StatusBadRequest, "key-missing")
		for site := range 2 {
			for _, line := range []string{"Idempotency-Key:", "Idempotency-Key:  \t ", `Idempotency-Key: ""`} {
				wantRefusal(t, sendLines(t, g, site, "empty", line), http.StatusBadRequest, "key-invalid")
			}
		}
	}
	up.want("optional", 2)
	up.want("required", 0)
	up.want("empty", 0)
}

// FP-14: what is no proper key is refused before the store is touched, and is
// neither cut nor shown. What the store is told of a key is a digest.
func TestFP14OnlyProperKeysAreTaken(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()))
	long := strings.Repeat("a", 255)
	for _, line := range []string{
		long + "a", strings.Repeat("a", 16000), "a\tb", "é", "\xff", "a b", "a,b", "a;b=1", `"a";b=1`, `"a", "b"`, `("a")`, `"a`, `a"b`, `"\n"`,
	} {
		a := sendLines(t, g, 0, "improper", "Idempotency-Key: "+line)
		wantRefusal(t, a, http.StatusBadRequest, "key-invalid")
		if strings.Contains(a.body, line) && len(line) > 3 {
			t.Errorf("the refusal repeats the key %q", line)
		}
	}
	wantRefusal(t, sendLines(t, g, 0, "improper", "Idempotency-Key: a", "Idempotency-Key: a"), http.StatusBadRequest, "key-invalid")
	// A control character may end the request before the handler is asked.
	for _, line := range []string{"a\x00b", "a\x1bb", "a\x7f"} {
		if a := sendLines(t, g, 0, "improper", "Idempotency-Key: "+line); a.status != http.StatusBadRequest {
			t.Errorf("%q: got %d %s", line, a.status, a.body)
		}
	}
	up.want("improper", 0)
	if keys := redis.do("KEYS", "*").([]any); len(keys) != 0 {
		t.Errorf("the store has %v", keys)
	}
	first := sendLines(t, g, 0, "longest", "Idempotency-Key: "+long)
	wantExecuted(t, first)
	wantReplay(t, first, sendLines(t, g, 0, "longest", `Idempotency-Key: "`+long+`"`))
	up.want("longest", 1)
	for _, key := range redis.do("KEYS", "*").([]any) {
		if strings.Contains(key.(string), "aaaa") {
			t.Errorf("the store shows the key in %s", key)
		}
	}
}

// With key_format uuid, other keys are refused before anything is claimed.
func TestKeyFormatUUID(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up).with("key_format", "uuid"))
	a := sendLines(t, g, 0, "uuid", "Idempotency-Key: order-1")
	wantRefusal(t, a, http.StatusBadRequest, "key-invalid")
	if !strings.Contains(a.body, "not a UUID") || a.problem().Advice != "fix-request" {
		t.Errorf("the client is told %s", a.body)
	}
	up.want("uuid", 0)
	first := sendLines(t, g, 0, "uuid", "Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324")
	wantExecuted(t, first)
	wantReplay(t, first, sendLines(t, g, 0, "uuid", `Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"`))
	up.want("uuid", 1)
}

// REP-20: a job is looked up under the very name under which it was stored,
// whatever its key looks like and however it is spelled; also by another process.
func TestREP20JobIsFoundUnderTheNameItWasStored(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		spellings := map[string][2]string{
			"plain":      {"sy", `"sy"`},
			"quoted":     {`"sy2"`, "sy2"},
			"escaped":    {`"a\"b\\c"`, ` "a\"b\\c" `},
			"separators": {"a:b/c|d", `"a:b/c|d"`},
			"list":       {`"a,b;c=1"`, "\t\"a,b;c=1\""},
			"percent":    {"a%3Ab", `"a%3Ab"`},
			"capitals":   {"SY", `"SY"`},
			"braces":     {"{http.request.host}", `"{http.request.host}"`},
			"glob":       {"*", `"*"`},
		}
		first := map[string]answer{}
		for name, spelled := range spellings {
			first[name] = sendLines(t, g, 0, name, "Idempotency-Key: "+spelled[0])
			wantExecuted(t, first[name])
		}
		again := func() {
			for name, spelled := range spellings {
				for _, s := range spelled {
					wantReplay(t, first[name], sendLines(t, g, 0, name, "idempotency-key: "+s))
				}
				up.want(name, 1)
			}
		}
		again()
		if err := g.terminate(); err != nil {
			t.Fatal(err)
		}
		g.restart()
		again()
	})
}

// SEC-06: owner and key are never strung together: what is the same text in the
// end is not the same job.
func TestSEC06OwnerAndKeyAreApart(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		pairs := [][2]string{{"a:b", "c"}, {"a", "b:c"}, {"a:b:c", "c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}}
		var first []answer
		for _, pair := range pairs {
			a := c.do(post(pair[1]).as(func(r *request) { r.owner = pair[0]; r.headers.Set("Up-Case", "apart") }))
			wantExecuted(t, a)
			first = append(first, a)
		}
		up.want("apart", len(pairs))
		for i, pair := range pairs {
			wantReplay(t, first[i], c.do(post(pair[1]).as(func(r *request) { r.owner = pair[0]; r.headers.Set("Up-Case", "apart") })))
		}
		up.want("apart", len(pairs))
	})
}

// SEC-04: where certificates are asked for and not required, callers without one have
// no name in common. They are nobody.
func TestSEC04CallersWithoutACertificateAreNobody(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up).with("owner", "{http.request.tls.client.fingerprint}")
	_, s.certificate = certificate(t)
	s.certificate += " {\nclient_auth {\nmode request\n}\n}"
	g := startGatewayWith(t, "servers {\nstrict_sni_host insecure_off\n}", s) // the client's URL has no name
	with := func(certificates ...tls.Certificate) *client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}}
		t.Cleanup(transport.CloseIdleConnections)
		return &client{t: t, url: g.url(0), c: &http.Client{Transport: transport}}
	}
	for range 2 {
		wantRefusal(t, with().do(post("anonymous")), http.StatusBadRequest, "owner-missing")
	}
	up.want("anonymous", 0)
	alice, _ := certificate(t)
	bob, _ := certificate(t)
	first := with(alice).do(post("named"))
	wantExecuted(t, first)
	wantReplay(t, first, with(alice).do(post("named")))
	wantExecuted(t, with(bob).do(post("named")))
	up.want("named", 2)
}
