package windows

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Whatever happens (Services come, change and go, calls fail before or after they worked, objects vanish, the agent restarts), once HNS
// works again it has exactly what a fresh node would have, and what others made.
func TestRandomHistoriesConverge(t *testing.T) {
	seed := nightly.Seed(t)
	for i := range nightly.Count(12, 300) {
		t.Run(fmt.Sprint(i), func(t *testing.T) { randomHistory(t, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
}

func randomHistory(t *testing.T, r *rand.Rand) {
	kind := []string{hns.NetworkOverlay, hns.NetworkL2Bridge}[r.IntN(2)]
	version := []hns.Version{{Major: 9, Minor: 2}, {Major: 13, Minor: 2}, {Major: 15, Minor: 4}, newest}[r.IntN(4)]
	b := newBed(t, kind, version)
	foreign := furnish(b)
	objects := map[string]func(*bed){} // what makes each Service on a bed
	for range 40 {
		name := fmt.Sprintf("web-%d", r.IntN(8))
		switch r.IntN(10) {
		case 0:
			delete(objects, name)
			b.tracker.DeleteService("default", name)
			b.tracker.DeleteEndpointSlice("default", name+"-1")
		case 1:
			b.hns.Heal()
			b.hns.Inject(randomFault(r))
		case 2:
			b.restart()
		case 3:
			if ls := b.hns.LoadBalancers(); len(ls) > 1 {
				if id := ls[r.IntN(len(ls))].ID; id != foreign {
					b.hns.DropLoadBalancer(id)
				}
			}
		case 4:
			b.expire()
		default:
			objects[name] = randomService(r, name)
			objects[name](b)
		}
		b.sync()
		b.sane()
	}
	b.hns.Heal()
	for range 3 {
		b.expire()
		b.sync()
	}
	b.good()

	fresh := newBed(t, kind, version)
	furnish(fresh)
	for _, make := range objects {
		make(fresh)
	}
	fresh.good()
	if got, want := b.hns.Dump(), fresh.hns.Dump(); got != want {
		t.Errorf("%s, HNS %s: after all that it has\n%s\na fresh node has\n%s", kind, version, got, want)
	}
	if n := writes(b.good()); n != 0 {
		t.Errorf("%d changes with nothing to do", n)
	}
}

// furnish makes six pods, and a load balancer of another program.
func furnish(b *bed) (foreign string) {
	for i := range 6 {
		b.pod(fmt.Sprintf("100.244.206.%d", 100+i))
	}
	return b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.1"}, "HostComputeEndpoints": []any{b.pod("100.244.206.120")},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}}})
}

func randomFault(r *rand.Rand) hnsfake.Fault {
	fns := []string{"HcnCreateLoadBalancer", "HcnCreateEndpoint", "HcnDeleteLoadBalancer", "HcnDeleteEndpoint", "HcnModifyLoadBalancer",
		"HcnEnumerateEndpoints", "HcnEnumerateLoadBalancers", "HcnOpenNetwork", "HcnQueryLoadBalancerProperties", "HcnQueryEndpointProperties"}
	return hnsfake.Fault{Func: fns[r.IntN(len(fns))], Times: 1 + r.IntN(4), Code: hns.CodeFail, Text: "random", Applied: r.IntN(2) == 0}
}

func randomService(r *rand.Rand, name string) func(*bed) {
	n := strings.TrimPrefix(name, "web-")
	spec := v1.ServiceSpec{ClusterIP: "10.99.0.1" + n, Ports: tcp(80, 8080)}
	if r.IntN(2) == 0 {
		spec.Type = v1.ServiceTypeNodePort
		spec.Ports[0].NodePort = 30080 + int32(n[0])
		if r.IntN(2) == 0 {
			spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		}
	}
	if r.IntN(3) == 0 {
		spec.ExternalIPs = []string{"203.0.113." + n}
	}
	if r.IntN(3) == 0 {
		spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	var eps []string
	for range r.IntN(5) {
		ep := fmt.Sprintf("100.244.%d.%d", 1+r.IntN(2), 1+r.IntN(6))
		switch r.IntN(6) {
		case 0:
			ep = fmt.Sprintf("100.244.206.%d@%s", 100+r.IntN(6), nodeName)
		case 1:
			ep = []string{otherNode, "192.0.2.77"}[r.IntN(2)] // a node's own address; one outside
		case 2:
			ep += "!"
		}
		eps = append(eps, ep)
	}
	return func(b *bed) {
		b.service(name, *spec.DeepCopy())
		b.slice(name, tcp(0, 8080), eps...)
	}
}
