package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// load returns how to encrypt connections, and what the files hold.
func (t *RedisTLS) load() (*tls.Config, [][]byte, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var files [][]byte
	read := func(option, setting string) ([]byte, error) {
		path, err := resolve("store redis: tls: "+option, setting)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("store redis: tls: %s: %w", option, err)
		}
		files = append(files, text)
		return text, nil
	}
	if t.CA != "" {
		text, err := read("ca", t.CA)
		if err != nil {
			return nil, nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, nil, errors.New("store redis: tls: ca: the file has no certificate in PEM")
		}
	}
	if t.Cert != "" {
		cert, err := read("cert", t.Cert)
		if err != nil {
			return nil, nil, err
		}
		key, err := read("key", t.Key)
		if err != nil {
			return nil, nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, nil, fmt.Errorf("store redis: tls: cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.ServerName != "" {
		name, err := resolve("store redis: tls: server_name", t.ServerName)
		if err != nil {
			return nil, nil, err
		}
		config.ServerName = name
	}
	return config, files, nil
}
