//go:build linux

package packets

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/apifake"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// nsxUplink is the uplink's OpenFlow port on the node below. It is not nkp's default.
const nsxUplink = 9

// A node of NSX, whose own address is beside the bridge and on whose bridge the NSX kube proxy served: once that
// one's flows are gone, nkp serves there with --ncp-ini alone, which names bridge, uplink, API server, token and
// CA. The other flags are the bed's own paths and names.
func TestNSXNode(t *testing.T) {
	c := newCluster(t, testbed.Options{Bridge: "br-nsx", Standalone: true, NodeOutside: true})
	_, err := c.Vsctl("set", "Interface", testbed.UplinkName, fmt.Sprintf("ofport_request=%d", nsxUplink))
	must(t, err)
	c.servePods(t)

	// The NSX kube proxy's flows serve, for one Service with an endpoint on another node.
	web := service("web", "40.0.0.10")
	served := func() error {
		_, err := c.pods[0].Ask(t.Context(), "tcp", "40.0.0.10:80")
		return err
	}
	_, err = c.Ofctl("add-group", c.Bridge, "group_id=100,type=select,bucket=weight=100,"+
		"ct(nat(dst="+hostPort(c.remotes[0].IP4, 8080)+"),commit,table=2)")
	must(t, err)
	flows := []string{
		"table=0,priority=100,ip actions=ct(table=1)",
		fmt.Sprintf("table=1,priority=90,ip,in_port=%d actions=ct(table=2,nat)", nsxUplink),
		"table=1,priority=80,ip actions=normal",
		"table=1,priority=100,tcp,nw_dst=40.0.0.10,tp_dst=80 actions=set_field:80->tcp_dst,group:100",
		"table=2 actions=normal",
	}
	for _, f := range append(flows, "table=0,priority=0 actions=normal") {
		_, err := c.Ofctl("add-flow", c.Bridge, f)
		must(t, err)
	}
	must(t, served())

	// It has gone, as docs/nsx.md says.
	for _, f := range flows {
		_, err := c.Ofctl("--strict", "del-flows", c.Bridge, strings.Fields(f)[0])
		must(t, err)
	}
	_, err = c.Ofctl("del-groups", c.Bridge, "group_id=100")
	must(t, err)

	// An API server, which takes one token only.
	const token = "token-of-ncp"
	ca := newPKI(t, filepath.Join(c.dir, "pki"), "ours")
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca.ca, ca.key)
	pair, err := tls.LoadX509KeyPair(ca.file("server-cert"), ca.file("server-key"))
	must(t, err)
	api := apifake.New()
	for _, o := range []any{harness.Node(), web, slice(web, 8080, ats(c.pods[1].IP4, c.remotes[0].IP4)...)} {
		api.Put(o.(k8s.Object))
	}
	plain, err := c.Node.Listen("127.0.0.1:0")
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		api.ServeHTTP(w, r)
	})}
	go server.Serve(tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{pair}})) // ends with Close
	defer server.Close()

	ini, tokenFile := filepath.Join(c.dir, "ncp.ini"), filepath.Join(c.dir, "token")
	must(t, os.WriteFile(tokenFile, []byte(token+"\n"), 0o600))
	host, port, err := net.SplitHostPort(plain.Addr().String())
	must(t, err)
	must(t, os.WriteFile(ini, fmt.Appendf(nil, `[DEFAULT]
debug = True
[k8s]
# of the cluster's API server
apiserver_host_ip = %s
apiserver_host_port = %s
client_token_file = %s
ca_file = %s
[nsx_node_agent]
ovs_bridge = %s
ovs_uplink_port = %s
`, host, port, tokenFile, ca.file("ca-cert"), c.Bridge, testbed.UplinkName), 0o600))
	c.launch("run", "--ncp-ini", ini, "--ovsdb", c.DB(), "--socket", c.socket(), "--hostname-override", nodeName)

	c.eventually("nkp serves", served)
	for range 20 { // both endpoints
		must(t, served())
	}
	c.logSays("nkp does not use these options of NSX's: [DEFAULT] debug", "mode=ovs")
	wait.NoError(t, "nkp is in step", func() error {
		out, stderr, status := c.nkp("status", "--socket", c.socket())
		if status != 0 || strings.Contains(out, "no uplink") {
			return fmt.Errorf("status %d: %s%s", status, out, stderr)
		}
		return nil
	})

	// The way back: cleanup finds the bridge by the same file.
	must(t, c.agent.Cmd.Process.Signal(os.Interrupt))
	<-c.agent.Done
	out, stderr, status := c.nkp("cleanup", "--ncp-ini", ini, "--ovsdb", c.DB(), "--socket", c.socket(), "--mode", "ovs")
	groups, err := c.Ofctl("dump-groups", c.Bridge)
	must(t, err)
	if status != 0 || strings.Contains(groups, "group_id") {
		t.Errorf("cleanup: status %d: %s%s; groups %s", status, out, stderr, groups)
	}
}
