package trace

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// plan is what `plan -o json` prints, read without nkp's types.
type plan struct {
	Services []struct {
		Namespace, Name, Port, Protocol, Family string
		ClusterEndpoints, LocalEndpoints        []string
		Frontends                               []planned
	}
}

type planned struct {
	Type, Address, Policy, WhenEmpty, ShadowedBy string
	Port                                         uint16
	SourceRanges                                 []string
}

// dice makes random clusters whose addresses meet often.
type dice struct{ *rand.Rand }

func pick[T any](d dice, choices ...T) T { return choices[d.IntN(len(choices))] }

var (
	vips    = []string{"40.0.0.1", "40.0.0.2", "40.0.0.3"}
	outside = []string{"20.0.0.1", "20.0.0.2", "172.16.0.2"}
	pods    = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"}
	clients = append([]string{"172.16.0.2", "172.16.0.3", "203.0.113.9", "20.0.0.1", "127.0.0.1"}, pods...)
	protos  = []v1.Protocol{"TCP", "UDP"}
)

func (d dice) service(i int) *v1.Service {
	ip := pick(d, vips...)
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("s", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(d.IntN(3)), 0))},
		Spec: v1.ServiceSpec{
			Type: pick(d, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer), ClusterIP: ip, ClusterIPs: []string{ip},
			ExternalTrafficPolicy: pick(d, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal),
		},
	}
	internal := pick(d, v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	s.Spec.InternalTrafficPolicy = &internal
	for j := range 1 + d.IntN(2) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: fmt.Sprint("p", j), Port: int32(80 + d.IntN(2)), Protocol: pick(d, protos...), NodePort: int32(pick(d, 0, 30000, 30001))})
	}
	if d.IntN(3) == 0 {
		s.Spec.ExternalIPs = []string{pick(d, outside...)}
	}
	if d.IntN(2) == 0 {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: pick(d, outside...)}}
		if d.IntN(2) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{pick(d, "10.0.0.0/24", "203.0.113.0/24", "172.16.0.2/32", "20.0.0.0/8")}
		}
	}
	return s
}

func (d dice) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("e", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", d.IntN(5))}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for j := range 2 {
		name, port, proto := fmt.Sprint("p", j), int32(8080), pick(d, protos...)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
	}
	for range d.IntN(4) {
		ip := pick(d, pods...)
		host, yes := "node-2", true
		if strings.HasPrefix(ip, "10.0.0.") {
			host = "node-1"
		}
		ready := d.IntN(4) > 0
		e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
		if !ready {
			e.Conditions.Serving, e.Conditions.Terminating = &yes, &yes
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (d dice) cluster() Cluster {
	t := k8s.NewTracker(k8s.Options{
		NodeName: "node-1", NodeIPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")},
		DetectLocal:  k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("40.0.0.0/24")},
	})
	for i := range 5 {
		t.SetService(d.service(i), k8s.Origin{})
	}
	for i := range 6 {
		t.SetEndpointSlice(d.slice(i), k8s.Origin{})
	}
	m, _ := t.Flush()
	return Cluster{Tracker: t, Model: m, LocalhostNodePorts: true}
}

// expect answers a question from the plan's text alone, by the rules of kube-proxy: a second opinion, in the plainest words.
func expect(p *plan, from, to, proto string, port uint16) string {
	isNode, isPod := from == "172.16.0.2" || from == "127.0.0.1", strings.HasPrefix(from, "10.0.")
	toNode := to == "172.16.0.2" || to == "127.0.0.1" && isNode
	for _, exact := range []bool{true, false} {
		for _, s := range p.Services {
			for _, f := range s.Frontends {
				if s.Protocol != proto || f.Port != port || f.ShadowedBy != "" || (f.Type == "NodePort") == exact ||
					exact && f.Address != to || !exact && !toNode {
					continue
				}
				return expectAt(s.Namespace+"/"+s.Name+":"+s.Port, f, s.ClusterEndpoints, s.LocalEndpoints, from, isNode, isPod)
			}
		}
	}
	verdict := "untouched"
	if strings.HasPrefix(to, "40.0.0.") {
		verdict = "drop"
	}
	for _, s := range p.Services {
		for _, f := range s.Frontends {
			if f.Type == "ClusterIP" && f.Address == to && f.ShadowedBy == "" {
				verdict = "reject"
			}
		}
	}
	return verdict + "    never"
}

func expectAt(name string, f planned, cluster, local []string, from string, isNode, isPod bool) string {
	at := " " + name + " " + f.Type + " "
	external := f.Type != "ClusterIP"
	policy := f.Policy
	if external && (isNode || isPod) {
		policy = "Cluster"
	}
	endpoints := cluster
	if policy == "Local" {
		endpoints = local
	}
	switch {
	case len(endpoints) == 0 && policy == "Local":
		return f.WhenEmpty + at + " never"
	case len(endpoints) == 0:
		return "reject" + at + " never"
	case len(f.SourceRanges) > 0 && !allowed(f, from):
		return "drop" + at + " never"
	}
	masquerade := "never"
	if slices.ContainsFunc(endpoints, func(e string) bool { return strings.HasPrefix(e, from+":") }) {
		masquerade = "hairpin"
	}
	if external && f.Policy == "Cluster" || external && isNode || !external && !isPod {
		masquerade = "always"
	}
	return "deliver" + at + strings.Join(endpoints, ",") + " " + masquerade
}

func allowed(f planned, from string) bool {
	in := func(ip string) bool {
		return slices.ContainsFunc(f.SourceRanges, func(r string) bool {
			return netip.MustParsePrefix(r).Contains(netip.MustParseAddr(ip))
		})
	}
	return in(from) || from == f.Address && in("172.16.0.2")
}

// Over random clusters and packets, the answer is what a second opinion makes of `plan -o json`.
func TestExplainIsThePlan(t *testing.T) {
	verdicts := map[Verdict]int{}
	for seed := range uint64(800) {
		d := dice{rand.New(rand.NewPCG(seed, 11))}
		c := d.cluster()
		text, err := json.Marshal(c.Model.View(nil))
		if err != nil {
			t.Fatal(err)
		}
		var p plan
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			from, proto := pick(d, clients...), string(pick(d, protos...))
			to, port := pick(d, slices.Concat(vips, outside, []string{"40.0.0.77", "127.0.0.1", "10.0.0.1"})...), uint16(pick(d, 80, 81, 30000, 30001, 8080))
			q := Question{From: netip.AddrPortFrom(netip.MustParseAddr(from), 0), To: netip.AddrPortFrom(netip.MustParseAddr(to), port), Protocol: k8s.Protocol(proto)}
			r := Explain(c, q)
			verdicts[r.Verdict]++
			got := fmt.Sprintf("%s %s %s %s %s", r.Verdict, r.Service, r.Frontend, strings.Join(r.Endpoints, ","), r.Masquerade)
			if want := expect(&p, from, to, proto, port); got != want {
				t.Fatalf("seed %d, %s:\n  trace: %s\n  plan:  %s\n  %s\n%s", seed, q, got, want, strings.Join(r.Steps, "\n  "), text)
			}
		}
	}
	for _, v := range []Verdict{Deliver, Reject, Drop, Untouched} {
		if verdicts[v] < 1000 {
			t.Errorf("only %d times %s", verdicts[v], v)
		}
	}
}
