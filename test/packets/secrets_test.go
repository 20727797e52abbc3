//go:build linux

package packets

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// What proves who nkp is never gets into a log, at no level, nor into status, metrics, profiles or /configz: with credentials of
// every kind, at a server that takes them and one that refuses them.
func TestSecretsAreNotSaid(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	ca := newPKI(t, filepath.Join(c.dir, "pki"), "ours")
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca.ca, ca.key)
	ca.issue("nkp", &x509.Certificate{}, ca.ca, ca.key)
	pair, err := tls.LoadX509KeyPair(ca.file("server-cert"), ca.file("server-key"))
	must(t, err)
	key, err := os.ReadFile(ca.file("nkp-key"))
	must(t, err)
	const token, password = "s3cr3t-token-abcdef0123456789", "s3cr3t-password-fedcba"
	secrets := []string{token, password, base64.StdEncoding.EncodeToString([]byte("someone:" + password)), strings.Split(string(key), "\n")[1],
		base64.StdEncoding.EncodeToString(key)[:60]}
	for _, tc := range []struct {
		name, user string
		proof      func(*http.Request) bool
	}{
		{"a token", `"token": "` + token + `"`, func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+token }},
		{"a password", `"username": "someone", "password": "` + password + `"`, func(r *http.Request) bool {
			_, p, _ := r.BasicAuth()
			return p == password
		}},
		{"a key", fmt.Sprintf(`"client-certificate": %q, "client-key-data": %q`, ca.file("nkp-cert"), base64.StdEncoding.EncodeToString(key)),
			func(r *http.Request) bool { return len(r.TLS.PeerCertificates) > 0 }},
	} {
		var proofs atomic.Int64
		plain, err := c.Node.Listen("127.0.0.1:0")
		must(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !tc.proof(r) || proofs.Add(1)%2 == 0 {
				http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`, http.StatusUnauthorized)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Query().Get("watch") != "" {
				return
			}
			fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		})}
		go server.Serve(tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})) // ends with Close
		config := filepath.Join(c.dir, "kubeconfig-"+strings.Fields(tc.name)[1])
		must(t, os.WriteFile(config, []byte(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config",
			"clusters": [{"name": "c", "cluster": {"server": "https://%s", "certificate-authority": %q}}],
			"users": [{"name": "u", "user": {%s}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}`,
			plain.Addr(), ca.file("ca-cert"), tc.user)), 0o600))
		args := []string{"run", "--socket", c.socket(), "--log-level", "debug", "-v", "10", "--kubeconfig", config, "--ovsdb", c.DB(), "--bridge", c.Bridge,
			"--hostname-override", nodeName, "--cluster-cidr", "10.0.0.0/16", "--profiling", "--ca-cert", ca.file("ca-cert"),
			"--certificate", ca.file("nkp-cert"), "--private-key", ca.file("nkp-key")}
		c.launch(args...)
		wait.For(t, tc.name+" is shown to the server ten times", func() bool { return proofs.Load() >= 10 })
		said := map[string]string{}
		for _, path := range []string{"/configz", "/metrics", "/debug/pprof/goroutine?debug=2"} {
			status, body, err := c.get(c.Node, "http://127.0.0.1:10249"+path)
			if err != nil || status != 200 {
				t.Errorf("%s: %s: %d %v", tc.name, path, status, err)
			}
			said[path] = body
		}
		status, errOut, _ := c.nkp("status", "-o", "json", "--socket", c.socket())
		said["status"] = status + errOut
		c.agent.Cmd.Process.Signal(os.Interrupt)
		<-c.agent.Done
		said["log"] = c.agent.Log.String()
		server.Close()
		if len(said["log"]) < 1000 || !strings.Contains(said["log"], "level=DEBUG") {
			t.Errorf("%s: the log is not one of debugging: %.500s", tc.name, said["log"])
		}
		for where, text := range said {
			for _, s := range secrets {
				if i := strings.Index(text, s); i >= 0 {
					t.Errorf("%s: %s has it: %.200s", tc.name, where, text[max(0, i-150):])
				}
			}
		}
	}
}
