//go:build linux

package packets

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// tlsProxy terminates TLS on the node's loopback address and forwards the bytes to a unix socket. configure may change the server's
// configuration; nil: it does not.
func (c *cluster) tlsProxy(t *testing.T, p *pki, cert, to string, configure func(*tls.Config)) (address string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(p.file(cert+"-cert"), p.file(cert+"-key"))
	must(t, err)
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}}
	if configure != nil {
		configure(cfg)
	}
	plain, err := c.Node.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { plain.Close() })
	l := tls.NewListener(plain, cfg)
	go func() { // ended by Close
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer near.Close()
				if near.(*tls.Conn).Handshake() != nil {
					return
				}
				far, err := net.Dial("unix", to)
				if err != nil {
					return
				}
				defer far.Close()
				go io.Copy(far, near)
				io.Copy(near, far)
			}()
		}
	}()
	return plain.Addr().String()
}

// nkp does not talk to an OpenFlow or OVSDB server whose certificate does not verify, nor one that does not accept its own. The error
// says why.
func TestTLSVerification(t *testing.T) {
	nightly.Only(t, "the tests of packages ofctrl and ovsdb check certificates")
	c := newCluster(t, testbed.Options{})
	c.write()
	ours, others := newPKI(t, filepath.Join(c.dir, "ours"), "ours"), newPKI(t, filepath.Join(c.dir, "others"), "others")
	loopback, day := []net.IP{net.IPv4(127, 0, 0, 1)}, 24*time.Hour
	issue := func(p *pki, name string, cert x509.Certificate) {
		if cert.IPAddresses == nil {
			cert.IPAddresses = loopback
		}
		p.issue(name, &cert, p.ca, p.key)
	}
	issue(ours, "good", x509.Certificate{})
	issue(ours, "nkp", x509.Certificate{Subject: pkix.Name{CommonName: "nkp"}})
	issue(ours, "expired", x509.Certificate{NotBefore: time.Now().Add(-2 * day), NotAfter: time.Now().Add(-day)})
	issue(ours, "early", x509.Certificate{NotBefore: time.Now().Add(day), NotAfter: time.Now().Add(2 * day)})
	issue(ours, "elsewhere", x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 9)}, DNSNames: []string{"switch.example"}})
	issue(ours, "client", x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	issue(others, "stranger", x509.Certificate{})
	demand := func(p *pki) func(*tls.Config) {
		text, err := os.ReadFile(p.file("ca-cert"))
		must(t, err)
		return func(c *tls.Config) {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			c.ClientCAs.AppendCertsFromPEM(text)
		}
	}
	for _, tc := range []struct {
		name, cert string
		pki        *pki
		configure  func(*tls.Config)
		anonymous  bool   // nkp presents no certificate
		want       string // in the error; "": it works
	}{
		{"valid", "good", ours, nil, false, ""},
		{"another authority", "stranger", others, nil, false, "unknown authority"},
		{"expired", "expired", ours, nil, false, "expired"},
		{"not valid yet", "early", ours, nil, false, "not yet valid"},
		{"issued for another address", "elsewhere", ours, nil, false, "valid for 127.0.0.9, not 127.0.0.1"},
		{"a client's certificate", "client", ours, nil, false, "incompatible key usage"},
		{"an old TLS", "good", ours, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11; c.MinVersion = tls.VersionTLS10 }, false, "protocol version"},
		{"requires a client certificate", "good", ours, demand(ours), false, ""},
		{"requires a client certificate of another authority", "good", ours, demand(others), false, "certificate"},
		{"requires a client certificate, none presented", "good", ours, demand(ours), true, "certificate"},
	} {
		flags := []string{"diff", "--manifests", c.manifest, "--bridge", c.Bridge, "--hostname-override", nodeName, "--ca-cert", ours.file("ca-cert")}
		if !tc.anonymous {
			flags = append(flags, "--certificate", ours.file("nkp-cert"), "--private-key", ours.file("nkp-key"))
		}
		for _, target := range []struct {
			name  string
			flags []string
		}{
			{"openflow", []string{"--ovsdb", c.DB(), "--openflow", "ssl:" + c.tlsProxy(t, tc.pki, tc.cert, c.Mgmt(c.Bridge), tc.configure)}},
			{"ovsdb", []string{"--openflow", "unix:" + c.Mgmt(c.Bridge), "--ovsdb", "ssl:" + c.tlsProxy(t, tc.pki, tc.cert, strings.TrimPrefix(c.DB(), "unix:"), tc.configure)}},
		} {
			_, errOut, status := c.nkp(append(flags, target.flags...)...)
			switch {
			case tc.want == "" && status != 1: // different: nothing is installed
				t.Errorf("%s, %s: diff exits with %d: %s", target.name, tc.name, status, errOut)
			case tc.want != "" && (status != 2 || !strings.Contains(errOut, tc.want)):
				t.Errorf("%s, %s: diff exits with %d and does not say %q: %s", target.name, tc.name, status, tc.want, errOut)
			}
		}
	}
}
