package plan

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/test/golden"
	"github.com/nkp-proxy/nkp/windows/hns"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// The source VIP by what the endpoints are.
func TestSourceVIP(t *testing.T) {
	f := Facts{
		Network: hns.Network{Type: hns.NetworkOverlay, RemoteSubnets: []hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: addr("192.168.1.12")}}},
		NodeIP:  addr("192.168.1.11"), SourceVIP: addr("10.244.1.2"),
	}
	const node, vip = "192.168.1.11", "10.244.1.2"
	for _, c := range []struct{ what, endpoints, want string }{
		{"(a) outside the cluster", "8.8.8.8", node},
		{"(a) outside the cluster among others", "10.244.2.5 8.8.8.8", node},
		{"(b) another node's own address", "192.168.1.12", node},
		{"(c) a pod here", "10.244.1.5/local", vip},
		{"(c) a pod elsewhere", "10.244.2.5", vip},
		{"(c) this node's own address", "192.168.1.11/local", vip},
		{"(c) this node's own address, in a slice without node names", "192.168.1.11", vip},
		{"(c) all of them", "10.244.1.5/local 10.244.2.5 192.168.1.11/local", vip},
	} {
		var eps []k8s.Endpoint
		for _, text := range strings.Fields(c.endpoints) {
			a, local := strings.CutSuffix(text, "/local")
			eps = append(eps, k8s.Endpoint{Addr: netip.AddrPortFrom(addr(a), 80), Local: local})
		}
		if got := f.sourceVIP(eps).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		l2 := f
		l2.Network.Type = hns.NetworkL2Bridge
		if got := l2.sourceVIP(eps); got != l2.SourceVIP {
			t.Errorf("%s: %s on an L2Bridge, want the configured one", c.what, got)
		}
		l2.SourceVIP = netip.Addr{}
		if got := l2.sourceVIP(eps); got.IsValid() {
			t.Errorf("%s: %s on an L2Bridge, where none is configured", c.what, got)
		}
	}
}

// Every kind of frontend and policy, on both kinds of network, as nkp plan -o hcn prints it: a frontend has one
// load balancer, whose endpoints are planned or of this host.
func TestShapes(t *testing.T) {
	m := manifest.Load(filepath.Join("testdata", "shapes.yaml"))
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	tracker := k8s.NewTracker(k8s.Options{NodeName: "winw1"})
	tracker.Apply(m.Objects)
	model, _ := tracker.Flush()
	for name, change := range map[string]func(*Facts){
		"l2bridge": func(*Facts) {},
		"l2bridge-dsr-health-preserve": func(f *Facts) {
			f.EnableDSR, f.HealthEndpoint, f.HealthzPort = true, addr("10.244.1.2"), 10256
		},
		"overlay": func(f *Facts) { f.Network.Type, f.SourceVIP = hns.NetworkOverlay, addr("10.244.1.2") },
		"old":     func(f *Facts) { f.Version = hns.Version{Major: 9, Minor: 2} },
	} {
		f := &Facts{Network: hns.Network{ID: "net", Name: "cbr0", Type: hns.NetworkL2Bridge}, Version: hns.Version{Major: 15, Minor: 5},
			NodeIP: addr("192.168.1.11"), HostMAC: "00:15:5d:00:00:01"}
		f.Network.RemoteSubnets = []hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: addr("192.168.1.12")}}
		change(f)
		ports := model.Ports
		if strings.HasSuffix(name, "preserve") {
			ports = preserving(ports, "lb", "lb-local")
		}
		got, err := New(ports, model.HealthChecks, f).JSON(f)
		var p Text
		if err := errors.Join(err, json.Unmarshal(got, &p)); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join("testdata", name+".json"), string(got))
		made := map[string]bool{}
		for _, e := range p.Endpoints {
			made[e.IpConfigurations[0].IpAddress] = true
		}
		held := map[Frontend]bool{}
		for i := range p.LoadBalancers {
			l := &p.LoadBalancers[i]
			for _, f := range FrontendsOf(l) {
				if held[f] {
					t.Errorf("%s: two load balancers hold %s", name, f)
				}
				held[f] = true
			}
			for _, a := range l.HostComputeEndpoints {
				if local := strings.HasPrefix(a, "10.244.1.") || strings.HasPrefix(a, "fd00:1::"); !local && !made[a] {
					t.Errorf("%s: nobody makes the endpoint %s", name, a)
				}
			}
		}
	}
}

// preserving returns the ports with those of the named Services as if they had the annotation preserve-destination.
func preserving(ports map[k8s.PortName]*k8s.ServicePort, services ...string) map[k8s.PortName]*k8s.ServicePort {
	ports = maps.Clone(ports)
	for n, sp := range ports {
		if slices.Contains(services, n.Name) {
			changed := *sp
			changed.PreserveDestination = true
			ports[n] = &changed
		}
	}
	return ports
}
