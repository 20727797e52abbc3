//go:build linux

package packets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// pki is a certificate authority in a directory.
type pki struct {
	t    *testing.T
	dir  string
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

func newPKI(t *testing.T, dir, name string) *pki {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	p := &pki{t: t, dir: dir}
	p.ca = &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	p.key = p.issue("ca", p.ca, p.ca, nil)
	return p
}

// issue writes NAME-cert.pem and NAME-key.pem, signed by the authority or, without a key, by itself.
func (p *pki) issue(name string, c, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(p.t, err)
	if signer == nil {
		signer = key
	}
	p.last++
	c.SerialNumber = big.NewInt(p.last)
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(p.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(p.t, err)
	must(p.t, os.WriteFile(p.file(name+"-cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(p.t, os.WriteFile(p.file(name+"-key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return key
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name+".pem") }

// tlsProxy terminates TLS on the node's loopback address, for clients that the authority ours knows, and forwards the
// bytes to a unix socket.
func (c *cluster) tlsProxy(t *testing.T, ours, p *pki, cert, to string) (address string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(p.file(cert+"-cert"), p.file(cert+"-key"))
	must(t, err)
	cas, err := os.ReadFile(ours.file("ca-cert"))
	must(t, err)
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(),
	}
	cfg.ClientCAs.AppendCertsFromPEM(cas)
	l, err := c.Node.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() { // ended by Close
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to)
			if err != nil {
				near.Close()
				continue
			}
			secure := tls.Server(near, cfg)
			go func() { defer far.Close(); io.Copy(far, secure) }() // these end with either connection
			go func() { defer near.Close(); io.Copy(secure, far) }()
		}
	}()
	return l.Addr().String()
}

// The switch may be reached over TCP and TLS, its database by TLS, too; TLS verifies the server's certificate, name
// included unless told otherwise, and presents nkp's own.
func TestTargets(t *testing.T) {
	nightly.Only(t, "the tests of packages ofctrl and ovsdb dial every kind of target")
	c := newCluster(t, testbed.Options{})
	ours, others := newPKI(t, filepath.Join(c.dir, "ours"), "ours"), newPKI(t, filepath.Join(c.dir, "others"), "others")
	ours.issue("named", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ours.ca, ours.key)
	ours.issue("nameless", &x509.Certificate{Subject: pkix.Name{CommonName: "switch"}}, ours.ca, ours.key)
	ours.issue("nkp", &x509.Certificate{Subject: pkix.Name{CommonName: "nkp"}}, ours.ca, ours.key)
	s := service("web", "40.0.0.1")
	c.servePods(t)
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	_, err := c.Vsctl("set-controller", c.Bridge, "ptcp:6653:127.0.0.1", "pssl:6654:127.0.0.1")
	must(t, err)
	others.issue("named", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, others.ca, others.key)
	ssl := func(ca *pki, more ...string) []string {
		return append([]string{"--openflow", "ssl:127.0.0.1:6654", "--ca-cert", ca.file("ca-cert"),
			"--certificate", ours.file("nkp-cert"), "--private-key", ours.file("nkp-key")}, more...)
	}
	database := func(p *pki) []string {
		return ssl(ours, "--ovsdb", "ssl:"+c.tlsProxy(t, ours, p, "named", strings.TrimPrefix(c.DB(), "unix:")))
	}
	for _, tc := range []struct {
		name, cert string
		flags      []string
		want       string // in the error; "": works
	}{
		{"tcp", "named", []string{"--openflow", "tcp:127.0.0.1:6653"}, ""},
		{"ssl", "named", ssl(ours), ""},
		{"ssl, certificate without a name, any name", "nameless", ssl(ours, "--any-certificate-name"), ""},
		{"ssl, certificate without a name", "nameless", ssl(ours), "certificate"},
		{"ssl, another authority", "named", ssl(others), "certificate"},
		{"ssl, any name, another authority", "nameless", ssl(others, "--any-certificate-name"), "certificate"},
		{"ssl, no CA", "named", []string{"--openflow", "ssl:127.0.0.1:6654"}, "CA"},
		{"ssl, no such file", "named", []string{"--openflow", "ssl:127.0.0.1:6654", "--ca-cert", "/nonexistent.pem"}, "/nonexistent.pem"},
		{"database by ssl", "named", database(ours), ""},
		{"database by ssl, another authority", "named", database(others), "unknown authority"},
		{"nobody listens", "named", []string{"--openflow", "tcp:127.0.0.1:1"}, "refused"},
	} {
		_, err := c.Vsctl("set-ssl", ours.file(tc.cert+"-key"), ours.file(tc.cert+"-cert"), ours.file("ca-cert"))
		must(t, err)
		c.eventually(tc.name, func() error { // ovs-vswitchd takes up a new certificate in its own time
			_, errOut, status := c.nkp(append(append([]string{"diff"}, c.common()...), tc.flags...)...)
			if tc.want == "" && status == 1 || tc.want != "" && status == 2 && strings.Contains(errOut, tc.want) {
				return nil // everything is missing, or the error that is wanted
			}
			return fmt.Errorf("diff ends with %d: %s", status, errOut)
		})
	}
	c.flags = ssl(ours, "--any-certificate-name")
	c.run()
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name)
}
