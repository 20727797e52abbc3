package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
)

var modes = []Mode{ModeOVS, ModeIPTables, ModeNFTables, ModeWindows}

// budgeted returns a tracker with a data plane's costs that holds these Services.
func budgeted(mode Mode, limits k8s.Limits, services ...shapes.Hostile) *k8s.Tracker {
	set := Settings{Limits: limits}
	return shapes.Tracker(set.TrackerOptions(mode), services...)
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
		in []Mode
	}{
		"ports × addresses": {shapes.Hostile{Ports: 1000, Addresses: 1000, Endpoints: 1}, modes},
		"ports, consistent": {shapes.Hostile{Ports: 500, Addresses: 1, Endpoints: 10, Consistent: true}, modes[:1]},
		"ports × endpoints": {shapes.Hostile{Ports: 300, Endpoints: 1000}, modes},
		"consistent, ranges × endpoints": {shapes.Hostile{Ports: 1, LoadBalancers: 1, Ranges: 2000, Endpoints: 500, Local: 500,
			Consistent: true}, modes[:1]},
		"ranges":                {shapes.Hostile{Ports: 1, LoadBalancers: 1, Ranges: 60_000, Endpoints: 1}, modes[:3]},
		"addresses × endpoints": {shapes.Hostile{Ports: 1, Addresses: 1000, Endpoints: 2000}, []Mode{ModeOVS, ModeNFTables, ModeWindows}},
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
