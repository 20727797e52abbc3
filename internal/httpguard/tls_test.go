package httpguard

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"
)

// Replaced certificate files are in use within a minute; files that cannot be read leave the last pair in use.
func TestNewTLS(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if _, err := NewTLS(certFile, keyFile, "node-1", log); err == nil {
		t.Error("missing files are no error")
	}
	write := func(host string) {
		certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
		must(t, err)
		for path, text := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
			must(t, os.WriteFile(path, text, 0o600))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write("first")
		c, err := NewTLS(certFile, keyFile, "node-1", log)
		must(t, err)
		want := func(c *tls.Config, host string) {
			t.Helper()
			got, err := c.GetCertificate(&tls.ClientHelloInfo{})
			must(t, err)
			if err := got.Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		want(c, "first")
		write("second")
		want(c, "first") // not read on every handshake
		time.Sleep(recheck)
		want(c, "second")
		must(t, os.WriteFile(keyFile, []byte("half a file"), 0o600))
		time.Sleep(recheck)
		want(c, "second")
		write("third")
		time.Sleep(recheck)
		want(c, "third")

		made, err := NewTLS("", "", "node-1", log)
		must(t, err)
		want(made, "node-1")
	})
}
