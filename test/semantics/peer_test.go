//go:build linux

package semantics

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// kube-proxy as a data plane, to check this list of tests against what it describes. It needs an API server, which is
// apiServer, and nothing of the machine's: it is told to leave the sysctls of connection tracking alone.

const apiAddress = "127.0.0.1:16443" // on the node

const kubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": "http://` + apiAddress + `"}}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]}`

func kubeProxyCommand(c *cluster, _ []string) []string {
	c.t.Helper()
	bin, err := kubeProxyBinary()
	must(c.t, err)
	if c.api == nil {
		l, err := c.Node.Listen(apiAddress)
		must(c.t, err)
		c.api = newAPIServer()
		server := &http.Server{Handler: c.api, ReadHeaderTimeout: 10 * time.Second}
		go server.Serve(l) // ended by Close
		c.t.Cleanup(func() { server.Close() })
	}
	file := filepath.Join(filepath.Dir(c.manifest), "kubeconfig")
	must(c.t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	return slices.Concat([]string{
		bin, "--kubeconfig", file, "--kube-api-content-type", "application/json", "--kube-api-qps", "100", "--kube-api-burst", "100",
		"--proxy-mode", "iptables", "--hostname-override", c.nodeName, "--iptables-min-sync-period", "20ms",
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
	}, c.flags)
}

// kubeProxyInStep looks for the rules of the newest marker, which comes last on every watch.
func kubeProxyInStep(c *cluster) error {
	marker := c.api.marker()
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		out, err := c.Exec(c.Node, program, "-t", "nat")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "nkp-marker:"+marker) {
			return errors.New("kube-proxy has not seen " + marker)
		}
	}
	time.Sleep(150 * time.Millisecond) // the node is watched for itself, and connection tracking is cleaned up last
	return nil
}

func kubeProxyCleanUp(c *cluster) error {
	bin, err := kubeProxyBinary()
	if err != nil {
		return err
	}
	out, status := c.run(bin, "--cleanup", "--hostname-override", c.nodeName)
	if status != 0 {
		return fmt.Errorf("kube-proxy --cleanup ends with %d: %s", status, out)
	}
	return nil
}

// markers are a Service and its slices whose port's name tells how often the objects have changed.
func markers(c *cluster, name string) (list []any) {
	s := service("nkp-marker", clusterIP(254))
	s.Spec.Ports[0].Name = name
	list = append(list, s)
	for _, f := range s.Spec.IPFamilies {
		list = append(list, c.slice(s, f, 9, []ep{{host: &testbed.Host{IP4: clusterIP(253).v4, IP6: clusterIP(253).v6}}}))
	}
	return list
}

// selected reports whether an object passes the selectors of kube-proxy's watches.
func selected(meta objectMeta, spec json.RawMessage) bool {
	if _, ok := meta.Labels[proxyLabel]; ok {
		return false
	}
	if _, ok := meta.Labels[v1.IsHeadlessService]; ok {
		return false
	}
	var s struct{ ClusterIP string }
	_ = json.Unmarshal(spec, &s)
	return s.ClusterIP != v1.ClusterIPNone
}
