//go:build linux

package windows

import (
	"io"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/windows/hns"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// What a running kube-proxy.exe serves on /metrics after HNS has refused a load balancer, a running nkp.exe serves too, by name, type and
// labels, or docs/metrics.md says why it does not. Both have the Services from the same API server.
func TestMetricsBesideKubeProxy(t *testing.T) {
	exe, err := kubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	const refusals = "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total"
	port, ip := freePort(t), someAddress(t) // kube-proxy looks for the address among the host's
	families := func(start func(h *host)) map[string]string {
		h := newHost(t, hns.NetworkOverlay, newest)
		h.write("node", "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\nstatus: {addresses: [{type: InternalIP, address: "+ip+"}]}\n")
		h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
		h.write("two", simple("two", "10.99.3.2", "100.244.1.2"))
		h.HNS.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodePortExists, Text: "The specified port already exists."})
		start(h)
		text := ""
		h.until("the refusal is counted", func() bool {
			res, err := asker.Get("http://127.0.0.1:" + port + "/metrics")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			text = string(body)
			return err == nil && strings.Contains(text, refusals+"{")
		})
		h.agent.Kill()
		return testbed.MetricFamilies(text)
	}
	theirs := families(func(h *host) {
		h.startKubeProxy(exe, freePort(t), "--source-vip", sourceVIP, "--metrics-bind-address", "127.0.0.1:"+port)
	})
	ours := families(func(h *host) {
		api := newAPIServer(t, h.Path("manifests"))
		h.agent = h.Start(nkpExe, append([]string{"run", "--kubeconfig", winebed.Windows(kubeconfig(t, api.URL)), "--hostname-override", nodeName,
			"--node-mac", hostMAC, "--source-vip", sourceVIP, "--healthz-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:" + port}, h.onHNS()...)...)
	})
	lines, err := testbed.UnlikeKubeProxy("../../../docs/metrics.md", ours, theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		t.Error(line)
	}
	if n := len(theirs); n < 30 {
		t.Errorf("kube-proxy.exe serves %d metrics only", n)
	}
}
