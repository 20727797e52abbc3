package agent

import (
	"fmt"
	"strings"
	"testing"

	iprules "github.com/nkp-proxy/nkp/fallback/iptables/rules"
	nftrules "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/windows/plan"
)

var modes = []mode.Mode{mode.OVS, mode.IPTables, mode.NFTables, mode.Windows}

// budgeted returns a tracker with a data plane's costs that holds these Services.
func budgeted(by mode.Mode, limits k8s.Limits, services ...shapes.Hostile) *k8s.Tracker {
	set := Settings{Options: k8s.Options{Limits: limits}}
	return shapes.Tracker(set.TrackerOptions(by), services...)
}

// 50,000 ordinary Services, all in one namespace, are never refused, nor is one with 5,000 endpoints at four ports in both families.
func TestOrdinaryServicesFit(t *testing.T) {
	var services []shapes.Hostile
	const tenth = 10 // of the Services, and of the limits
	for i := range 50_000 / tenth {
		services = append(services, shapes.Hostile{Namespace: "default", Name: fmt.Sprint("s", i), Ports: 1, Endpoints: 10, Local: 1,
			IPv4: true, NodePorts: i%10 == 0})
	}
	large := shapes.Hostile{Namespace: "large", Name: "large", Ports: 4, Endpoints: 5000, Local: 100, LoadBalancers: 1,
		IPv4: true, IPv6: true, NodePorts: true}
	for _, mode := range modes {
		limits := k8s.DefaultLimits
		limits.Namespace, limits.Node = limits.Namespace/tenth, limits.Node/tenth
		for what, tr := range map[string]*k8s.Tracker{"ordinary": budgeted(mode, limits, services...), "large": budgeted(mode, k8s.DefaultLimits, large)} {
			m, _ := tr.Flush()
			if refused := tr.Refused(); len(refused) > 0 {
				t.Errorf("%s, %s: %d refused: %v", mode, what, len(refused), m.Warnings[:1])
			}
		}
	}
}

// Services whose products are large are refused before the products exist, and others are served.
func TestLargeProductsAreRefused(t *testing.T) {
	neighbour := shapes.Hostile{Namespace: "neighbour", Name: "web", Ports: 1, Endpoints: 3, IPv4: true}
	for name, tc := range map[string]struct {
		shapes.Hostile
		in []mode.Mode
	}{
		"ports × addresses":     {shapes.Hostile{Ports: 1000, Addresses: 1000, Endpoints: 1}, modes},
		"ports, consistent":     {shapes.Hostile{Ports: 500, Addresses: 1, Endpoints: 10, Consistent: true}, modes[:1]},
		"ports × endpoints":     {shapes.Hostile{Ports: 300, Endpoints: 1000}, modes},
		"ranges":                {shapes.Hostile{Ports: 1, LoadBalancers: 1, Ranges: 60_000, Endpoints: 1}, modes[:3]},
		"addresses × endpoints": {shapes.Hostile{Ports: 1, Addresses: 1000, Endpoints: 2000}, modes[3:]},
	} {
		tc.IPv4, tc.Namespace, tc.Name = true, "hostile", "large"
		for _, mode := range tc.in {
			tr := budgeted(mode, k8s.DefaultLimits, tc.Hostile, neighbour)
			m, _ := tr.Flush()
			if len(tr.Refused()) != 1 || len(m.Ports) != 1 {
				t.Errorf("%s, %s: refused %v, %d ports are served", name, mode, tr.Refused(), len(m.Ports))
			}
			if text := fmt.Sprint(m.Warnings); !strings.Contains(text, "--cost-limit") {
				t.Errorf("%s, %s: %s", name, mode, text)
			}
		}
	}
}

// FuzzHostile compiles a Service of any shape for every data plane, within small limits: what is compiled is bounded by the limit, or the
// Service is refused, and its neighbour is served in any case.
func FuzzHostile(f *testing.F) {
	for _, flags := range []uint16{0, 0xffff, 0x155, 0x2aa, 0x600, 0x118} {
		f.Add(uint16(1000), uint16(1000), uint16(0), uint16(0), uint16(3), uint16(0), flags)
		f.Add(uint16(4), uint16(3), uint16(2), uint16(50), uint16(40), uint16(9), flags)
		f.Add(uint16(1), uint16(1), uint16(2), uint16(2000), uint16(500), uint16(500), flags)
	}
	f.Fuzz(func(t *testing.T, ports, addresses, balancers, ranges, endpoints, local, flags uint16) {
		const most = 3000
		yes := func(bit int) bool { return flags>>bit&1 == 1 }
		h := shapes.Hostile{Namespace: "hostile", Name: "large", Ports: 1 + int(ports%most), Addresses: int(addresses % most),
			LoadBalancers: int(balancers % most), Ranges: int(ranges % most), Endpoints: int(endpoints % most), Local: int(local % most),
			UDP: yes(0), IPv4: !yes(1) || !yes(2), IPv6: yes(2), NodePorts: yes(3), Affinity: yes(4), ExternalLocal: yes(5), InternalLocal: yes(6),
			Consistent: yes(7), Weighted: yes(8), Closes: yes(9), NodeAddress: yes(10)}
		h.Local = min(h.Local, h.Endpoints)
		neighbour := shapes.Hostile{Namespace: "neighbour", Name: "web", Ports: 1, Endpoints: 3, IPv4: true, Age: 1}
		limits := k8s.Limits{Service: 20_000, Namespace: 20_000, Node: 20_200}
		for mode, compiled := range compilers {
			tr := budgeted(mode, limits, h, neighbour)
			m, _ := tr.Flush()
			costs, served := 0, false
			for n, sp := range m.Ports {
				costs += sp.Cost
				served = served || n.Namespace == neighbour.Namespace
			}
			if !served || costs > limits.Node {
				t.Fatalf("%s: the neighbour is served: %t; cost %d", mode, served, costs)
			}
			if n := compiled(m); n > costs {
				t.Errorf("%s: %d objects are compiled, the cost was %d", mode, n, costs)
			}
		}
	})
}

// compilers compile a model for each data plane, and return about how many objects they make of its Services: not the shared ones.
var compilers = map[mode.Mode]func(*k8s.Model) int{
	mode.OVS: func(m *k8s.Model) (n int) {
		c, err := pipeline.NewCompiler(pipeline.Config{Layout: pipeline.DefaultLayout(), NodeIPs: m.Node.IPs, LocalIPs: m.Node.Local,
			Uplink: 1, Detector: m.Detector, Counters: true, Fragments: true})
		if err != nil {
			panic(err)
		}
		n = -c.Flows()
		c.Update(m.Ports)
		return n + c.Flows() + c.Groups()
	},
	mode.NFTables: func(m *k8s.Model) (n int) {
		for name, sp := range m.Ports {
			s := nftrules.NewCompiler(nftrules.Config{}, name.Family, m).Service(sp, nftrules.AssignPorts(nftrules.Ports{}, sp))
			n += len(s.Elements) + len(s.Shared) + len(s.Own.Chains)
		}
		return n
	},
	mode.IPTables: func(m *k8s.Model) (n int) {
		for name, sp := range m.Ports {
			s := iprules.NewCompiler(serving.Config{}, name.Family, m).Service(sp)
			n += len(s.SharedRules)
			for _, c := range s.Chains {
				n += 1 + len(c.Rules)
			}
		}
		return n
	},
	mode.Windows: func(m *k8s.Model) (n int) {
		w := plan.New(m.Ports, m.HealthChecks, &plan.Facts{})
		for _, l := range w.LoadBalancers {
			n += 1 + len(l.Backends)
		}
		return n + len(w.Endpoints)
	},
}
