package pipeline

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// TestLimitsFollow: what is said of a Service port follows its changes and those of the configuration. Nothing is kept of those without
// limits, so that asking takes no longer with more of them.
func TestLimitsFollow(t *testing.T) {
	web := func(affinity int, endpoint string) *k8s.ServicePort {
		return &k8s.ServicePort{
			Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: "TCP", Family: k8s.IPv4}, AffinitySeconds: affinity,
			ClusterEndpoints: []k8s.Endpoint{{Addr: netip.MustParseAddrPort(endpoint)}, {Addr: netip.MustParseAddrPort("10.0.0.12:80")}},
			Frontends:        []k8s.Frontend{{Type: k8s.ExternalIP, Address: addr("10.0.0.11"), Port: 80, Policy: k8s.Cluster}},
		}
	}
	cfg := testConfig()
	cfg.NoNullNAT = true
	c := compile(t, cfg)
	says := func(when string, want ...string) {
		t.Helper()
		got := c.Missing()
		if len(got) != len(want) || len(got) != len(c.limits) {
			t.Errorf("%s: %q (of %d Service ports), want %q", when, got, len(c.limits), want)
			return
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", when, got[i], want[i])
			}
		}
	}
	update := func(sp *k8s.ServicePort) {
		c.Update(map[k8s.PortName]*k8s.ServicePort{web(0, "10.0.0.11:80").Name: sp})
	}
	reconfigure := func(noNullNAT bool) {
		cfg.NoNullNAT = noNullNAT
		_, err := c.Reconfigure(cfg)
		if err != nil {
			t.Fatal(err)
		}
	}
	says("no Service")
	update(web(0, "10.0.0.13:80"))
	says("a Service without limits")
	update(web(0, "10.0.0.11:80"))
	says("its own endpoint", "is an endpoint itself")
	reconfigure(false)
	says("a switch that translates to the same address")
	reconfigure(true)
	says("and one that does not", "is an endpoint itself")
	update(web(MaxAffinitySeconds+1, "10.0.0.13:80"))
	says("a long timeout", "the session affinity timeout of 65536 s")
	update(web(MaxAffinitySeconds, "10.0.0.13:80"))
	says("the longest timeout")
	update(web(0, "10.0.0.11:80"))
	update(nil)
	says("deleted")
}
