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

	"github.com/nkp-proxy/nkp/ofctrl/ofctrltest"
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
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key = a.newKey()
	a.cert = a.sign("ca", tmpl, tmpl, a.key, a.key)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

func (a *authority) sign(name string, tmpl, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	tmpl.Subject = pkix.Name{CommonName: name}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	kb, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", kb)
	c, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *authority) write(name, kind string, der []byte) {
	b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(a.file(name), b, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(name string, ips ...net.IP) {
	a.sign(name, &x509.Certificate{SerialNumber: big.NewInt(2), IPAddresses: ips}, a.cert, a.newKey(), a.key)
}

// serve runs fake switches behind TLS that ask for a certificate of the authority.
func (a *authority) serve(name string, max uint16) Target {
	pair, err := tls.LoadX509KeyPair(a.file(name+".pem"), a.file(name+".key"))
	if err != nil {
		a.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: max, MinVersion: tls.VersionTLS10,
	})
	if err != nil {
		a.t.Fatal(err)
	}
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
		"wrong name":       {good, with(func(f *TLSFiles) { f.ServerName = "x.example" }), "certificate"},
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
