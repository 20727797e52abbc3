package pipeline

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Where a translation must change something, a frontend that has an endpoint's address and port leads past the group, and a
// line names it. All other frontends lead to the group. By packet: TestSwitchSurvives.
func TestOwnEndpoint(t *testing.T) {
	external := func(address string, port uint16) k8s.Frontend {
		return k8s.Frontend{Type: k8s.ExternalIP, Address: addr(address), Port: port, Policy: k8s.Cluster}
	}
	nodePort := k8s.Frontend{Type: k8s.NodePort, Port: 30080, Policy: k8s.Cluster}
	for _, tc := range []struct {
		name     string
		protocol k8s.Protocol
		endpoint string
		frontend k8s.Frontend
		own      bool
	}{
		{"address and port", "TCP", "10.0.0.11:80", external("10.0.0.11", 80), true},
		{"address, another port", "TCP", "10.0.0.11:80", external("10.0.0.11", 81), false},
		{"port, another address", "TCP", "10.0.0.11:80", external("10.0.0.12", 80), false},
		{"SCTP is tracked without ports", "SCTP", "10.0.0.11:80", external("10.0.0.11", 81), true},
		{"NodePort, endpoint on this node", "UDP", "172.16.0.2:30080", nodePort, true},
		{"NodePort, another port", "UDP", "172.16.0.2:80", nodePort, false},
		{"NodePort, endpoint on another node", "UDP", "172.16.0.3:30080", nodePort, false},
	} {
		for _, noNullNAT := range []bool{true, false} {
			cfg := testConfig()
			cfg.NoNullNAT = noNullNAT
			sp := &k8s.ServicePort{
				Name:             k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: tc.protocol, Family: k8s.IPv4},
				ClusterEndpoints: []k8s.Endpoint{{Addr: netip.MustParseAddrPort(tc.endpoint)}, {Addr: netip.MustParseAddrPort("192.0.2.9:999")}}, // one alone needs no group
				Frontends:        []k8s.Frontend{tc.frontend},
			}
			c := compile(t, cfg, sp)
			_, groups := c.Objects(sp.Name)
			named := strings.Contains(strings.Join(c.Missing(), "\n"), "default/web")
			if past := tc.own && noNullNAT; past != (len(groups) == 0) || past != named {
				t.Errorf("%s, NoNullNAT %t: %d groups, named: %t", tc.name, noNullNAT, len(groups), named)
			}
		}
	}
}
