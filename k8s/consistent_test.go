package k8s

import (
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
)

// TestConsistentSlots replaces one endpoint at a time. On average 1.05 shares move at most. More than 1.2 move in no change of up to
// ten endpoints, and in five of a hundred at twenty. Each endpoint has its share within leastShare and mostShare. A change and its
// reversal move the same slots, because they depend on the set alone.
func TestConsistentSlots(t *testing.T) {
	random := rand.New(rand.NewPCG(19, 53))
	for _, way := range []struct {
		addresses string
		next      func() []Endpoint
	}{
		{"random", func() []Endpoint { return randomEndpoints(random, 1) }},
		{"successive", successiveEndpoints()},
	} {
		for _, n := range []int{1, 2, 3, 5, 10, 20} {
			c := &Consistent{}
			for range n {
				c.Endpoints = sortedEndpoints(append(c.Endpoints, way.next()...))
			}
			owners := c.Slots()
			const changes = 200
			sum, worst, above := 0.0, 0.0, 0
			for range changes {
				more := &Consistent{Endpoints: sortedEndpoints(append(slices.Clone(c.Endpoints), way.next()...))}
				next := more.Slots()
				checkShares(t, more, next)
				leaves := random.IntN(n + 1)
				less := &Consistent{Endpoints: slices.Delete(slices.Clone(more.Endpoints), leaves, leaves+1)}
				rest := less.Slots()
				for _, moved := range []float64{movedSlots(c, owners, more, next), movedSlots(more, next, less, rest)} {
					sum, worst = sum+moved, max(worst, moved)
					if moved > 1.2 {
						above++
					}
				}
				c, owners = less, rest
			}
			mean := sum / (2 * changes)
			t.Logf("%d endpoints, %s addresses: one more or one less moves %.2f shares on average, %.2f at most, more than 1.2 in %d of %d changes",
				n, way.addresses, mean, worst, above, 2*changes)
			if mean > 1.05 || n <= 10 && above > 0 || above > 2*changes/20 || worst > 1.35 {
				t.Error("too many slots move")
			}
		}
	}
}

// TestConsistentIsTheSameEverywhere: nodes of different versions must choose alike, because one sends packets on to
// the endpoint that the other one translates for. Another choice breaks connections for as long as a cluster has
// nodes of both: if this has to change, so has the annotation.
func TestConsistentIsTheSameEverywhere(t *testing.T) {
	c, weighted := &Consistent{}, &Consistent{}
	for i, at := range []string{
		"10.0.0.11:8080", "10.0.0.12:8080", "10.1.0.11:8080", "[fd00:10::b]:8080", "[fd00:10::c]:443",
	} {
		c.Endpoints = append(c.Endpoints, Endpoint{Addr: netip.MustParseAddrPort(at)})
		other := netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.7:8080", i))
		weighted.Endpoints = append(weighted.Endpoints, Endpoint{Addr: other, MoreWeight: uint8(i / 4)})
	}
	for want, c := range map[string]*Consistent{
		"2102133012002311424422241424002320000143004234024303110204101122": c,
		"423413040002344344100243": weighted,
	} {
		owners := ""
		for _, o := range c.Slots()[:len(want)] {
			owners += fmt.Sprint(o)
		}
		if owners != want {
			t.Errorf("the owners of the first slots are\n%s, want\n%s", owners, want)
		}
	}
	v, mask := ConsistentPorts(3)
	third := c.Endpoints[c.Slots()[3]]
	if v != 6 || mask != 0x7fe || c.Choose(0x8006) != third || c.Choose(7) != third {
		t.Errorf("slot 3 has ports %#x/%#x", v, mask)
	}
}

// successiveEndpoints returns a source of endpoints whose addresses follow each other, as a node's pods have them.
func successiveEndpoints() func() []Endpoint {
	at := netip.MustParseAddr("10.0.0.10")
	return func() []Endpoint {
		at = at.Next()
		return []Endpoint{{Addr: netip.AddrPortFrom(at, 8080)}}
	}
}

// movedSlots returns which part of the slots has another owner, in shares of an endpoint of the larger set.
func movedSlots(a *Consistent, was []int, b *Consistent, now []int) float64 {
	moved := 0
	for slot := range was {
		if a.Endpoints[was[slot]].Addr != b.Endpoints[now[slot]].Addr {
			moved++
		}
	}
	return float64(moved) * float64(max(len(a.Endpoints), len(b.Endpoints))) / ConsistentSlots
}

// TestConsistentSeconds: when an endpoint comes or leaves, the slots that move have the endpoint before the change as their second,
// but for those that even the shares out.
func TestConsistentSeconds(t *testing.T) {
	random := rand.New(rand.NewPCG(19, 54))
	for _, n := range []int{1, 2, 3, 5, 10} {
		moved, found := 0, 0
		for range 20 {
			old := &Consistent{Endpoints: randomEndpoints(random, n)}
			more := &Consistent{Endpoints: sortedEndpoints(append(slices.Clone(old.Endpoints), randomEndpoints(random, 1)...))}
			k := random.IntN(n + 1)
			less := &Consistent{Endpoints: slices.Delete(slices.Clone(more.Endpoints), k, k+1), Leaving: more.Endpoints[k : k+1]}
			for _, step := range [][2]*Consistent{{old, more}, {more, less}} {
				was, now := step[0], step[1]
				before, after := was.Slots(), now.Slots()
				for slot, i := range now.Seconds(after) {
					if from := was.Endpoints[before[slot]]; from.Addr != now.Endpoints[after[slot]].Addr {
						moved++
						if i >= 0 && now.Serving()[i].Addr == from.Addr {
							found++
						}
					}
				}
			}
		}
		t.Logf("%d endpoints: %.3f of %d slots that moved have their endpoint as second", n, float64(found)/float64(moved), moved)
		if float64(found) < 0.95*float64(moved) {
			t.Errorf("%d endpoints: %d of %d slots that moved have their endpoint as second", n, found, moved)
		}
	}
	one := &Consistent{Endpoints: randomEndpoints(random, 1)}
	if second := one.Seconds(one.Slots()); second[0] != -1 {
		t.Errorf("the only endpoint has a second: %d", second[0])
	}
}

func checkShares(t *testing.T, c *Consistent, owners []int) {
	t.Helper()
	have := make([]int, len(c.Endpoints))
	for _, i := range owners {
		have[i]++
	}
	total := 0
	for _, e := range c.Endpoints {
		total += e.Weight()
	}
	for i, n := range have {
		share := float64(ConsistentSlots*c.Endpoints[i].Weight()) / float64(total)
		if f := float64(n) / share; f < 0.73 || f > 1.19 { // rounded to a slot
			t.Errorf("%d endpoints: %s has %.2f of its share", len(have), c.Endpoints[i].Addr, f)
		}
	}
}

func randomEndpoints(random *rand.Rand, n int) []Endpoint {
	es := make([]Endpoint, n)
	for i := range es {
		es[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}), 8080)
	}
	return sortedEndpoints(es)
}

func sortedEndpoints(es []Endpoint) []Endpoint {
	slices.SortFunc(es, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return es
}

// TestConsistentAnnotation checks which Services AnnotationConsistent applies to, and that each reason why not is a warning.
func TestConsistentAnnotation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1.Service, *discoveryv1.EndpointSlice)
		opts   Options
		want   string // of the only warning; "": none
		off    bool
	}{
		"applies":     {change: func(*v1.Service, *discoveryv1.EndpointSlice) {}},
		"false":       {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) { s.Annotations[AnnotationConsistent] = "false" }, off: true},
		"other value": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) { s.Annotations[AnnotationConsistent] = "yes" }, want: "neither true nor false", off: true},
		"affinity":    {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }, want: "session affinity", off: true},
		"Local": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		}, want: "externalTrafficPolicy Local", off: true},
		"no node port": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports[0].NodePort = 0 }, want: "no NodePort", off: true},
		"SCTP":         {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP }, want: "SCTP", off: true},
		"no address": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.Type, s.Spec.ExternalIPs, s.Status = v1.ServiceTypeNodePort, nil, v1.ServiceStatus{}
		}, want: "no external IP", off: true},
		"address to come": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalIPs, s.Status = nil, v1.ServiceStatus{}
		}, off: true},
		"two addresses": {change: func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "1.2.3.5")
		}, want: "serves 1.2.3.4 only"},
		"no node":     {change: func(_ *v1.Service, sl *discoveryv1.EndpointSlice) { sl.Endpoints[0].NodeName = nil }, want: "endpoint 10.0.0.1:8080 has no nodeName", off: true},
		"other plane": {change: func(*v1.Service, *discoveryv1.EndpointSlice) {}, opts: Options{NotConsistent: "only bridges have it"}, want: "has no effect: only bridges have it", off: true},
		"drained": {change: func(s *v1.Service, sl *discoveryv1.EndpointSlice) {
			s.Annotations[AnnotationWeights] = "10.0.1.1=0"
			sl.Endpoints = append(sl.Endpoints, sl.Endpoints[0], sl.Endpoints[0])
			sl.Endpoints[1].Addresses, sl.Endpoints[2].Addresses = []string{"10.0.1.1"}, []string{"10.0.1.2"}
			yes, no := true, false
			sl.Endpoints[2].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		}},
		"other zone": {change: func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "n1"}}}
			away := sl.Endpoints[0]
			node := "n2"
			away.Addresses, away.NodeName, away.Hints = []string{"10.0.1.1"}, &node, &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "n2"}}}
			sl.Endpoints = append(sl.Endpoints, away)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, sl := webService(), webSlice()
			s.Spec.SessionAffinity, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceAffinityNone, v1.ServiceExternalTrafficPolicyCluster, 0
			s.Status = v1.ServiceStatus{}
			s.Annotations = map[string]string{AnnotationConsistent: "true"}
			c.change(s, sl)
			sl.Ports[0].Protocol = &s.Spec.Ports[0].Protocol
			c.opts.NodeName = "n1"
			tr := NewTracker(c.opts)
			tr.SetService(s, Origin{})
			tr.SetEndpointSlice(sl, Origin{})
			m, _ := tr.Flush()
			var got *Consistent
			for _, p := range m.Ports {
				got = p.Consistent
				if got != nil && (len(got.Serving()) != len(sl.Endpoints) || name == "drained" && len(got.Endpoints) != 1) {
					t.Errorf("endpoints %v, leaving %v, of %d", got.Endpoints, got.Leaving, len(sl.Endpoints))
				}
			}
			if (got == nil) != c.off {
				t.Errorf("served so: %+v", got)
			}
			var texts []string
			for _, w := range m.Warnings {
				texts = append(texts, w.String())
			}
			if c.want == "" && len(texts) > 0 || c.want != "" && (len(texts) != 1 || !strings.Contains(texts[0], c.want) || !strings.Contains(texts[0], "metadata.annotations["+AnnotationConsistent+"]")) {
				t.Errorf("warnings %q, want one with %q", texts, c.want)
			}
			tr.SetService(s, Origin{})
			tr.SetEndpointSlice(sl, Origin{})
			if _, again := tr.Flush(); len(again.Ports) != 0 {
				t.Errorf("the same objects again change %d Service ports", len(again.Ports))
			}
		})
	}
}

// A relay, an endpoint's address at the Service's node port, belongs to one Service: to the one that has a frontend there, else to the
// oldest that wants it. So an EndpointSlice takes no traffic of another Service's, in whatever order things come and go, and no two
// Services want the same of the switch. A shadowed address is not served by a consistent choice.
func TestRelaysBelongToOne(t *testing.T) {
	consistent := func(name, ip string, nodePort int32, hour int) *v1.Service {
		s := webService()
		s.Name, s.CreationTimestamp = name, metav1.NewTime(time.Unix(int64(3600*hour), 0))
		s.Spec.ClusterIP, s.Spec.ExternalIPs, s.Status = fmt.Sprint("40.0.9.", hour), []string{ip}, v1.ServiceStatus{}
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		s.Spec.SessionAffinity, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceAffinityNone, v1.ServiceExternalTrafficPolicyCluster, 0
		s.Annotations = map[string]string{AnnotationConsistent: "true"}
		s.Spec.Ports = s.Spec.Ports[:1]
		s.Spec.Ports[0].NodePort = nodePort
		return s
	}
	endpoints := func(of *v1.Service, ips ...string) *discoveryv1.EndpointSlice {
		sl := webSlice()
		sl.Name, sl.Labels = of.Name+"-1", map[string]string{discoveryv1.LabelServiceName: of.Name}
		sl.Ports[0].Protocol = &of.Spec.Ports[0].Protocol
		e := sl.Endpoints[0]
		sl.Endpoints = nil
		for _, ip := range ips {
			e.Addresses = []string{ip}
			sl.Endpoints = append(sl.Endpoints, e)
		}
		return sl
	}
	victim, tenant := consistent("victim", "1.2.3.4", 30001, 5), consistent("tenant", "1.2.3.5", 30080, 1)
	victim.Annotations = nil
	victim.Spec.Ports[0].Port = 30080
	twin := consistent("twin", "1.2.3.6", 30080, 2) // as manifests can have it: the API server gives a node port once
	steps := []struct {
		what string
		do   func(*Tracker)
		want string // who is served so
	}{
		{"a Service", func(tr *Tracker) { tr.SetService(tenant, Origin{}) }, ""},
		{"its endpoint", func(tr *Tracker) { tr.SetEndpointSlice(endpoints(tenant, "10.0.0.1"), Origin{}) }, "tenant"},
		{"another's address as endpoint", func(tr *Tracker) { tr.SetEndpointSlice(endpoints(tenant, "10.0.0.1", "1.2.3.4"), Origin{}) }, "tenant"},
		{"the other serves the port there", func(tr *Tracker) { tr.SetService(victim, Origin{}) }, ""},
		{"the endpoint goes", func(tr *Tracker) { tr.SetEndpointSlice(endpoints(tenant, "10.0.0.1"), Origin{}) }, "tenant"},
		{"and comes back", func(tr *Tracker) { tr.SetEndpointSlice(endpoints(tenant, "10.0.0.1", "1.2.3.4"), Origin{}) }, ""},
		{"the other goes", func(tr *Tracker) { tr.DeleteService("default", "victim") }, "tenant"},
		{"a younger one with the same endpoint", func(tr *Tracker) {
			tr.SetService(twin, Origin{})
			tr.SetEndpointSlice(endpoints(twin, "10.0.0.1"), Origin{})
		}, "tenant"},
		{"the older one goes", func(tr *Tracker) { tr.DeleteService("default", "tenant") }, "twin"},
		{"and comes back", func(tr *Tracker) { tr.SetService(tenant, Origin{}) }, "tenant"},
		{"another has its address", func(tr *Tracker) {
			older := consistent("older", "1.2.3.5", 30099, 0)
			older.Annotations = nil
			tr.SetService(older, Origin{})
		}, ""},
	}
	tr := NewTracker(Options{NodeName: "n1"})
	for _, step := range steps {
		step.do(tr)
		m, _ := tr.Flush()
		var served []string
		for n, p := range m.Ports {
			if p.Consistent != nil {
				served = append(served, n.Name)
			}
		}
		if got := strings.Join(served, " "); got != step.want {
			t.Errorf("%s: %q is served so, want %q; warnings %v", step.what, got, step.want, m.Warnings)
		}
	}
	if len(tr.relays) != 2 {
		t.Errorf("relays: %v", tr.relays)
	}
}

// Many endpoints with large weights cost no more than as many without, and the larger weight still gets more slots.
func TestConsistentWeightsAreBounded(t *testing.T) {
	c := &Consistent{}
	for i := range 2000 {
		e := Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}
		if i < 50 {
			e.MoreWeight = MaxWeight - 1
		}
		c.Endpoints = append(c.Endpoints, e)
	}
	n := 0
	for _, list := range c.scores() {
		n += len(list)
	}
	if limit := maxScores + len(c.Endpoints); n > limit {
		t.Errorf("%d scores, want %d at most", n, limit)
	}
	heavy := 0
	for _, i := range c.Slots() {
		if i < 50 {
			heavy++
		}
	}
	if share := ConsistentSlots * 5000 / 6950; heavy < share*8/10 || heavy > share*12/10 {
		t.Errorf("%d slots for the fifty of weight %d, want about %d", heavy, MaxWeight, share)
	}
}
