package ofctrl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// Target is where a bridge's OpenFlow socket is.
type Target struct {
	Network string // "unix" or "tcp"
	Address string // a path, or host:port
	TLS     bool   // only with "tcp"
}

// ParseTarget reads unix:/path, a plain absolute path, tcp:host:port or ssl:host:port, as ovs-ofctl(8)
// writes them. The port may be left out; it is 6653 then. An IPv6 host stands in brackets.
func ParseTarget(s string) (Target, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	switch {
	case strings.HasPrefix(s, "/"):
		return unixTarget(s, s)
	case ok && scheme == "unix":
		return unixTarget(s, rest)
	case ok && (scheme == "tcp" || scheme == "ssl"):
		addr, err := hostPort(rest)
		if err != nil {
			return Target{}, fmt.Errorf("openflow target %q: %w", s, err)
		}
		return Target{Network: "tcp", Address: addr, TLS: scheme == "ssl"}, nil
	}
	return Target{}, fmt.Errorf("openflow target %q: want unix:/PATH, /PATH, tcp:HOST:PORT or ssl:HOST:PORT",
		s)
}

// maxSocketPath is the longest path of a UNIX socket: sun_path has 108 bytes, the last of them zero
// (unix(7)).
const maxSocketPath = 107

func unixTarget(s, path string) (Target, error) {
	if path == "" {
		return Target{}, fmt.Errorf("openflow target %q: the path is missing", s)
	}
	if len(path) > maxSocketPath {
		return Target{}, fmt.Errorf("openflow target %q: the path is longer than a socket's may be "+
			"(%d bytes)",
			s, maxSocketPath)
	}
	return Target{Network: "unix", Address: path}, nil
}

// defaultPort is the OpenFlow port that IANA assigned (OpenFlow 1.5.1 §6.3).
const defaultPort = "6653"

func hostPort(s string) (string, error) {
	if s == "" {
		return "", errors.New("the host is missing")
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if !strings.Contains(s, ":") || strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return net.JoinHostPort(bare, defaultPort), nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("not HOST:PORT (an IPv6 host goes in brackets): %w", err)
	}
	if host == "" {
		return "", errors.New("the host is missing")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return "", fmt.Errorf("bad port %q", port)
	}
	return net.JoinHostPort(host, port), nil
}

// String returns the target in the form that ParseTarget reads.
func (t Target) String() string {
	switch {
	case t.Network == "unix":
		return "unix:" + t.Address
	case t.TLS:
		return "ssl:" + t.Address
	}
	return "tcp:" + t.Address
}

// TLSFiles are the PEM files for an ssl: target.
type TLSFiles struct {
	CA        string // certificates that verify the switch's; required
	Cert, Key string // certificate and key of this side; both or neither
	// AnyName accepts every name in a certificate that CA verifies. Certificates made by ovs-pki(8) contain
	// no host name, and ovs-vswitchd itself does not check names either.
	AnyName bool
}

// Config reads the files for a connection to addr (HOST:PORT). TLS 1.2 is the lowest version, and the chain
// is always verified.
func (f TLSFiles) Config(addr string) (*tls.Config, error) {
	if f.CA == "" {
		return nil, errors.New("an ssl: target needs a CA file")
	}

	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read CA file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %s holds no PEM certificate", f.CA)
	}

	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
		return nil, err
	}

	if f.Cert != "" || f.Key != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read certificate and key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}

	if f.AnyName {
		cfg.InsecureSkipVerify = true // the chain is verified below
		cfg.VerifyConnection = func(cs tls.ConnectionState) error { return verifyChain(cs, roots) }
	}
	return cfg, nil
}

// verifyChain verifies the certificate chain as crypto/tls does, but not the host name.
func verifyChain(cs tls.ConnectionState, roots *x509.CertPool) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("switch presented no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	return err
}
