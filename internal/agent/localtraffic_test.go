package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// iptables beside the bridge gets the Services with a NodePort, when they come and when they change, and no others.
func TestOwnTraffic(t *testing.T) {
	o := fallback.DefaultOptions()
	o.Scope, o.Log = serving.Own, slog.New(slog.DiscardHandler)
	p, err := iptables.New(iptables.Options{Options: o})
	must(t, err)
	own := &localTraffic{Plane: p}
	port := func(name string, nodePort uint16) *k8s.ServicePort {
		sp := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: name}, Protocol: "TCP", Family: k8s.IPv4}}
		sp.Frontends = []k8s.Frontend{{Type: k8s.ClusterIP, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}
		if nodePort != 0 {
			sp.Frontends = append(sp.Frontends, k8s.Frontend{Type: k8s.NodePort, Port: nodePort, Policy: k8s.Cluster, WhenEmpty: k8s.Reject})
		}
		return sp
	}
	model := &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	step := func(first bool, sps ...*k8s.ServicePort) string {
		c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}, Node: first}
		for _, sp := range sps {
			model.Ports[sp.Name], c.Ports[sp.Name] = sp, sp
		}
		own.Update(model, c)
		return p.Plan()
	}
	plan := step(true, port("inside", 0), port("open", 30001))
	if !strings.Contains(plan, "ns/open") || strings.Contains(plan, "ns/inside") {
		t.Errorf("at first:\n%s", plan)
	}
	if plan = step(false, port("inside", 30002)); !strings.Contains(plan, "ns/inside") {
		t.Errorf("a Service gets a NodePort:\n%s", plan)
	}
	if plan = step(false, port("open", 0)); strings.Contains(plan, "ns/open") || !strings.Contains(plan, "ns/inside") {
		t.Errorf("a Service loses its NodePort:\n%s", plan)
	}
	gone := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: "inside"}, Protocol: "TCP", Family: k8s.IPv4}
	own.Update(model, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{gone: nil}})
	if plan = p.Plan(); strings.Contains(plan, "ns/") {
		t.Errorf("a Service goes:\n%s", plan)
	}
}
