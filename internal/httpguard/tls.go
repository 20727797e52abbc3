package httpguard

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
)

// recheck is how often certificate files are read again, because cert-manager and kubelet replace them.
const recheck = time.Minute

// NewTLS returns a server's configuration with the certificate of two PEM files, which are read again every
// minute: a pair that cannot be read leaves the last one in use. Without files the certificate is self-signed
// for host, and made at the first handshake.
func NewTLS(certFile, keyFile, host string, log *slog.Logger) (*tls.Config, error) {
	if certFile == "" && keyFile == "" {
		made := sync.OnceValues(func() (*tls.Certificate, error) {
			certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
			if err != nil {
				return nil, err
			}
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			return &pair, err
		})
		return &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return made() },
		}, nil
	}
	f := &certFiles{cert: certFile, key: keyFile, log: log}
	if err := f.load(); err != nil {
		return nil, err
	}
	return &tls.Config{GetCertificate: f.get}, nil
}

// certFiles is a certificate that may be replaced on disk.
type certFiles struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex // protects all below
	pair   *tls.Certificate
	read   time.Time // the last attempt
	failed bool      // of the last attempt
}

// load reads the files. The caller holds mu, or has the only reference.
func (f *certFiles) load() error {
	f.read = time.Now()
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		f.pair = &pair
	}
	return err
}

// get is tls.Config.GetCertificate.
func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.read) >= recheck {
		err := f.load()
		if err != nil && !f.failed {
			f.log.Warn("cannot read the certificate again; the last one stays in use", "error", err)
		}
		f.failed = err != nil
	}
	return f.pair, nil
}
