package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// TLS is a server that also listens for TLS, and wants a certificate of its
// clients. Create it with [StartTLS].
type TLS struct {
	*Server
	// SecureAddr is where it listens for TLS (host:port).
	SecureAddr string
	// CA, Cert and Key are files: who has signed, and what a client shows.
	CA, Cert, Key string
}

// ServerName is the name in the server's certificate, besides 127.0.0.1.
const ServerName = "redis.example"

// StartTLS runs such a server.
func StartTLS(t testing.TB, args ...string) *TLS {
	t.Helper()
	dir := t.TempDir()
	s := &TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client-key.pem")}
	serverCert, serverKey := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")

	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	caKey := newKey(t)
	writeCertificate(t, s.CA, "", ca, ca, caKey, caKey)
	for i, files := range [][2]string{{serverCert, serverKey}, {s.Cert, s.Key}} {
		writeCertificate(t, files[0], files[1], &x509.Certificate{
			SerialNumber: big.NewInt(int64(2 + i)), Subject: pkix.Name{CommonName: "leaf"},
			DNSNames: []string{ServerName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}, ca, newKey(t), caKey)
	}
	s.Server = start(t, server, Setup{}, func(*Server) []string {
		port := testport.Take(t)
		s.SecureAddr = "127.0.0.1:" + port
		return append([]string{
			"--tls-port", port, "--tls-ca-cert-file", s.CA, "--tls-cert-file", serverCert, "--tls-key-file", serverKey,
			"--tls-auth-clients", "yes",
		}, args...)
	})
	return s
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("redistest: make a key: %v", err)
	}
	return key
}

func writeCertificate(t testing.TB, certFile, keyFile string, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatalf("redistest: make a certificate: %v", err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	if keyFile == "" {
		return
	}
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatalf("redistest: write a key: %v", err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("redistest: write a file: %v", err)
	}
}
