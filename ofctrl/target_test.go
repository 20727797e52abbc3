//go:build linux

package ofctrl

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]string{
		"unix:/run/br-int.mgmt": "unix:/run/br-int.mgmt", "/run/br-int.mgmt": "unix:/run/br-int.mgmt",
		"unix:rel": "unix:rel", "tcp:10.0.0.1:6633": "tcp:10.0.0.1:6633", "ssl:h.example:1": "ssl:h.example:1",
		"tcp:10.0.0.1": "tcp:10.0.0.1:6653", "tcp:[fd00::1]:1": "tcp:[fd00::1]:1", "ssl:[fd00::1]": "ssl:[fd00::1]:6653",
	} {
		got, err := ParseTarget(in)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
		if again, err := ParseTarget(got.String()); again != got || err != nil {
			t.Errorf("%s does not round-trip: %v, %v", in, again, err)
		}
	}
	for _, in := range []string{
		"", "br-int", "unix:", "tcp:", "tcp::1", "udp:1.2.3.4:5", "tcp:1.2.3.4:x", "tcp:1.2.3.4:70000", "tcp:fd00::1:2:3",
		"/" + strings.Repeat("x", 107),
	} {
		if got, err := ParseTarget(in); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

// authority makes certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign writes NAME.pem and NAME.key, signed by the authority or, if it has no certificate yet, by itself.
func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	must(a.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(a.t, err)
	for file, block := range map[string]pem.Block{
		".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		must(a.t, os.WriteFile(a.file(name+file), pem.EncodeToMemory(&block), 0o600))
	}
	signed, err := x509.ParseCertificate(der)
	must(a.t, err)
	return signed, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(name string, ips ...net.IP) {
	a.sign(name, &x509.Certificate{IPAddresses: ips})
}

// serve runs fake switches behind TLS that ask for a certificate of the authority.
func (a *authority) serve(name string, max uint16) Target {
	pair, err := tls.LoadX509KeyPair(a.file(name+".pem"), a.file(name+".key"))
	must(a.t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: max, MinVersion: tls.VersionTLS10,
	})
	must(a.t, err)
	sw := ofctrltest.Serve(l, ofctrltest.Options{})
	a.t.Cleanup(func() { sw.Close() })
	return Target{Network: "tcp", Address: l.Addr().String(), TLS: true}
}

// TestTLS connects with good and bad certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	ca.issue("switch", net.IPv4(127, 0, 0, 1))
	ca.issue("nameless")
	ca.issue("client")
	good, nameless, old := ca.serve("switch", 0), ca.serve("nameless", 0), ca.serve("switch", tls.VersionTLS11)
	files := TLSFiles{CA: ca.file("ca.pem"), Cert: ca.file("client.pem"), Key: ca.file("client.key")}
	with := func(change func(*TLSFiles)) TLSFiles {
		f := files
		change(&f)
		return f
	}
	for name, tc := range map[string]struct {
		target Target
		files  TLSFiles
		fails  string // "" means it works
	}{
		"good":             {good, files, ""},
		"any name":         {nameless, with(func(f *TLSFiles) { f.AnyName = true }), ""},
		"no name":          {nameless, files, "certificate"},
		"other authority":  {good, with(func(f *TLSFiles) { f.CA = other.file("ca.pem") }), "unknown authority"},
		"other, any name":  {nameless, with(func(f *TLSFiles) { f.CA, f.AnyName = other.file("ca.pem"), true }), "unknown authority"},
		"no certificate":   {good, with(func(f *TLSFiles) { f.Cert, f.Key = "", "" }), "certificate"},
		"TLS 1.1":          {old, files, "version"},
		"no CA":            {good, with(func(f *TLSFiles) { f.CA = "" }), "CA"},
		"CA is not there":  {good, with(func(f *TLSFiles) { f.CA = "/nonexistent" }), "CA"},
		"CA is no PEM":     {good, with(func(f *TLSFiles) { f.CA = ca.file("client.key") }), "PEM"},
		"no key":           {good, with(func(f *TLSFiles) { f.Key = "" }), "read certificate and key"},
		"a key alone":      {good, with(func(f *TLSFiles) { f.Cert = "" }), "read certificate and key"},
		"key of no one":    {good, with(func(f *TLSFiles) { f.Key = ca.file("switch.key") }), "key"},
		"plain to TLS":     {Target{Network: "tcp", Address: good.Address}, files, ""},
		"nobody listening": {Target{Network: "tcp", Address: "127.0.0.1:1"}, files, "refused"},
	} {
		c, err := Dial(t.Context(), tc.target, patient(Options{TLS: tc.files}))
		if c != nil {
			c.Close()
		}
		if name == "plain to TLS" {
			if err == nil {
				t.Error("plain OpenFlow to a TLS port works")
			}
			continue
		}
		if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
