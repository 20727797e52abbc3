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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/test/apifake"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// kube-proxy as a data plane, to check this list of tests against what it describes. It needs an API server, and
// nothing of the machine's: it is told to leave the sysctls of connection tracking alone.

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
		c.api = apifake.New()
		server := &http.Server{Handler: c.api, ReadHeaderTimeout: 10 * time.Second}
		go server.Serve(l) // ended by Close
		c.t.Cleanup(func() { server.Close() })
	}
	file := filepath.Join(filepath.Dir(c.manifest), "kubeconfig")
	must(c.t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	return slices.Concat([]string{
		bin, "--kubeconfig", file, "--kube-api-qps", "100", "--kube-api-burst", "100",
		"--proxy-mode", "iptables", "--hostname-override", c.nodeName, "--iptables-min-sync-period", "20ms",
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
	}, c.flags)
}

// kubeProxyInStep looks for the rules of the newest marker, which comes last on every watch.
func kubeProxyInStep(c *cluster) error {
	marker := c.marker()
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

// tellPeer puts all objects where kube-proxy reads them, and behind them the next marker.
func (c *cluster) tellPeer(items []any) error {
	c.told++
	var objects []metav1.Object
	for _, item := range append(items, c.markers()...) {
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			return err
		}
		objects = append(objects, o.(metav1.Object))
	}
	c.api.Replace(objects...)
	return nil
}

// marker is the name that the newest marker carries.
func (c *cluster) marker() string { return fmt.Sprint("g", c.told) }

// markers are a Service and its slices whose port's name tells how often the objects have changed.
func (c *cluster) markers() (list []any) {
	s := service("nkp-marker", clusterIP(254))
	s.Spec.Ports[0].Name = c.marker()
	list = append(list, s)
	for _, f := range s.Spec.IPFamilies {
		list = append(list, c.slice(s, f, 9, []ep{{host: &testbed.Host{IP4: clusterIP(253).v4, IP6: clusterIP(253).v6}}}))
	}
	return list
}
