//go:build linux

package windows

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// kube-proxy.exe ends, and Services go before nkp.exe starts: their load balancers stay until nkp is told to take over, and diff lists
// them before.
func TestTakeOver(t *testing.T) {
	exe, err := kubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	for _, networkType := range []string{hns.NetworkOverlay, hns.NetworkL2Bridge} {
		h := newHost(t, networkType, newest)
		h.mac = ""
		h.write("node", "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\nstatus: {addresses: [{type: InternalIP, address: "+someAddress(t)+"}]}\n")
		h.write("stays", simple("stays", "10.99.3.1", "100.244.1.1"))
		h.write("goes", simple("goes", "10.99.3.2", "100.244.1.2"))
		h.startKubeProxy(exe, freePort(t), "--source-vip", sourceVIP)
		h.has(2) // their endpoints come first
		h.agent.Kill()
		h.write("goes", "# nothing\n")

		h.start()
		h.settled()
		h.has(2)
		h.agent.Kill()

		h.flags = []string{"--hns-take-over"}
		flags := append(append(h.onHNS(), h.offline()...), h.flags...)
		out := h.expect(1, "diff", flags, "delete load balancer 10.99.3.2:80/TCP", "another Service proxy left it")
		if strings.Contains(out, "10.99.3.1") {
			t.Errorf("diff would touch the load balancer of a Service that is there:\n%s", out)
		}
		h.HNS.Calls()
		h.start()
		h.has(1)
		h.settled()
		if d := h.HNS.Dump(); strings.Contains(d, "10.99.3.2") || strings.Contains(d, "100.244.1.2") || !strings.Contains(d, `"FrontendVIPs":["10.99.3.1"]`) {
			t.Errorf("%s: after nkp has taken over HNS has\n%s", networkType, d)
		}
		h.agent.Kill()
	}
}
