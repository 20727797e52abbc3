//go:build linux

package fallback

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	scaleEndpoints = 10      // of each Service
	scaleHeap      = 5 << 10 // bytes of live memory for each Service, at most
)

func scaleName(i int) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("service-", i)},
		Port: "http", Protocol: "TCP", Family: k8s.IPv4}
}

// scaleVIP is the ClusterIP of Service i.
func scaleVIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{40, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}

// generate makes n Services; no two have an endpoint in common.
func generate(n int) *k8s.Model {
	m := &k8s.Model{
		Node:     k8s.Node{Name: "node", IPs: []netip.Addr{testbed.NodeIP4}},
		Detector: k8s.Detector{CIDRs: []netip.Prefix{testbed.PodCIDR4}},
		Ports:    map[k8s.PortName]*k8s.ServicePort{},
	}
	for i := range n {
		p := &k8s.ServicePort{Name: scaleName(i), Frontends: []k8s.Frontend{{
			Type: k8s.ClusterIP, Address: scaleVIP(i), Port: 80, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}}
		for j := range scaleEndpoints {
			k := i*scaleEndpoints + j
			p.ClusterEndpoints = append(p.ClusterEndpoints, k8s.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(k>>16), byte(k >> 8), byte(k)}), 80)})
		}
		m.Ports[p.Name] = p
	}
	return m
}

// replace puts another endpoint in the place of one of Service i.
func replace(m *k8s.Model, i int, to netip.AddrPort) k8s.Changes {
	p := *m.Ports[scaleName(i)]
	p.ClusterEndpoints = slices.Clone(p.ClusterEndpoints)
	p.ClusterEndpoints[scaleEndpoints/2] = k8s.Endpoint{Addr: to}
	m.Ports[p.Name] = &p
	return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: &p}}
}

// What one endpoint's change costs, and what each Service keeps in memory, does not grow with the number of Services; a restart writes
// what has changed, but for iptables over nf_tables, where so many rules are not read back. TestCostOfAChange shows the same of iptables
// in the gate.
func TestScale(t *testing.T) {
	planes, sizes := []restore.Backend{nftables}, []int{100, 1_000}
	if nightly.Is() {
		planes, sizes = append(planes, backends...), []int{1_000, 5_000}
	}
	over(t, planes, func(t *testing.T, backend restore.Backend) {
		type measured struct {
			change cost
			heap   uint64
		}
		var list []measured
		for _, services := range sizes {
			b, _ := bed(t, testbed.Options{})
			o := defaults(backend)
			o.SyncPeriod = time.Hour
			p := launch(t, b, o)
			programmed := func() {
				t.Helper()
				p.ask(request{Op: "generate", N: services})
				p.until("all Services", func(f FamilyStatus) bool { return f.InStep && f.Services == services })
			}
			programmed()

			// Chains that nothing leads to any more are deleted at a time of their own: the least of several changes has none of that.
			least := cost{math.MaxInt, math.MaxInt, math.MaxUint64}
			const changes = 10
			for i := range changes {
				c := p.ask(request{Op: "change", N: i * services / changes, To: fmt.Sprintf("10.250.0.%d:80", i)}).Cost
				least = cost{min(least.Transactions, c.Transactions), min(least.Rules, c.Rules), min(least.Allocated, c.Allocated)}
				p.until("the change", func(f FamilyStatus) bool { return f.InStep })
			}
			heap := p.ask(request{Op: "heap"}).Cost.Allocated
			p.kill()
			p = launch(t, b, o)
			programmed()
			restart := p.ipv4().Rules
			if backend != restore.NFT && restart > (changes+1)*max(least.Rules, 2) {
				t.Errorf("%d Services, of which %d have changed: a restart writes %d rules", services, changes, restart)
			}
			t.Logf("%d Services: a change %+v, heap %d kB, %d rules at a restart", services, least, heap>>10, restart)
			list = append(list, measured{least, heap})
		}

		few, many := list[0], list[1]
		if many.change.Transactions > few.change.Transactions || many.change.Rules > few.change.Rules {
			t.Errorf("a change costs %+v with %d Services, %+v with %d", few.change, sizes[0], many.change, sizes[1])
		}
		if many.change.Allocated > 2*few.change.Allocated { // all Services would make it 5
			t.Errorf("a change allocates %d bytes with %d Services, %d with %d", few.change.Allocated, sizes[0], many.change.Allocated, sizes[1])
		}
		if each := int(many.heap-few.heap) / (sizes[1] - sizes[0]); each > scaleHeap {
			t.Errorf("a Service of %d endpoints keeps %d bytes, want at most %d", scaleEndpoints, each, scaleHeap)
		}
	})
}
