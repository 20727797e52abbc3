package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// consistentPort is a Service port with n endpoints on two nodes in turn, of which local is this one.
func consistentPort(n, local int, ranges ...netip.Prefix) *k8s.ServicePort {
	sp := shape{Name: "consistent", Cluster: n, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.LoadBalancer, k8s.NodePort}, Ranges: ranges}.ServicePort()
	for i := range sp.ClusterEndpoints {
		sp.ClusterEndpoints[i].Local = i%2 == local
		if i%2 == local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, sp.ClusterEndpoints[i])
		}
	}
	sp.Consistent = &k8s.Consistent{Address: sp.Frontends[1].Address, Relay: 30000, Endpoints: sp.ClusterEndpoints}
	return sp
}

// TestConsistentObjects counts what consistent choice adds to a Service port: a flow for each slot, and another where the endpoint is
// here and the second elsewhere; one for each source range and place where packets enter, or for each source range if there are many, and three for each endpoint here. A change of one endpoint touches no more than twice its slots and 8.
// Compiled again, nothing differs.
func TestConsistentObjects(t *testing.T) {
	ranges := []netip.Prefix{prefix("192.168.0.0/24"), prefix("192.168.2.0/24")}
	many := slices.Clone(ranges)
	for i := range 100 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32))
	}
	for _, ranges := range [][]netip.Prefix{nil, ranges, many} {
		sp := consistentPort(5, 0, ranges...)
		plain := *sp
		plain.Consistent = nil
		c := compile(t, testConfig(), sp)
		added := c.Flows() - compile(t, testConfig(), &plain).Flows()
		const here = 3
		seconds := 0
		owners := sp.Consistent.Slots()
		for slot, i := range sp.Consistent.Seconds(owners) {
			if sp.ClusterEndpoints[owners[slot]].Local && !sp.ClusterEndpoints[i].Local {
				seconds++
			}
		}
		entries := max(1, len(ranges)) * (1 + here)
		if len(ranges) > placeRanges { // in the slots' table, with one more for other clients and one for each endpoint here
			entries = len(ranges) + 1 + 1 + 2*here
		}
		if want := k8s.ConsistentSlots + seconds + 3*here + entries; added != want || seconds == 0 {
			t.Errorf("%d ranges: %d flows more, want %d", len(ranges), added, want)
		}
		for _, f := range c.State().Flows { // pods and the node are served as by other frontends
			if f.Table == tableTrack && f.Priority == prioConsistent && f.Match.Reg[0].Value&sourceMask|^f.Match.Reg[0].Mask&sourceMask != uint32(k8s.Outside) {
				t.Errorf("not for clients outside alone: %s", f)
			}
		}
		if d := flow.Diff(c.State(), compile(t, testConfig(), sp).State()); !d.Empty() {
			t.Errorf("compiled again, it differs: %v", d)
		}
	}
	for _, n := range []int{2, 5, 10} {
		c := compile(t, testConfig(), consistentPort(n, 0))
		more := consistentPort(n+1, 0)
		d := c.Update(map[k8s.PortName]*k8s.ServicePort{more.Name: more})
		if touched, most := len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups), 2*k8s.ConsistentSlots/n+8; touched > most {
			t.Errorf("%d endpoints and one more: %d objects, at most %d", n, touched, most)
		} else {
			t.Logf("%d endpoints and one more: %d objects, at most %d", n, touched, most)
		}
	}
}

// TestConsistentNodesAgree compares two nodes: each sends a slot to the same endpoint, one by translation and the other by its relay port.
func TestConsistentNodesAgree(t *testing.T) {
	targets := func(local int) (list []netip.AddrPort) {
		sp := consistentPort(5, local)
		list = make([]netip.AddrPort, k8s.ConsistentSlots)
		flows, _ := compile(t, testConfig(), sp).Objects(sp.Name)
		byID := map[uint64]netip.AddrPort{}
		for _, f := range flows {
			if to := translation(f.Actions); f.Priority == prioChosen && to.IsValid() {
				byID[uint64(f.Match.Reg[2].Value)] = to
			}
		}
		for _, f := range flows {
			if f.Table != tableSlots || f.Priority != prioLast {
				continue
			}
			slot := f.Match.SrcPort.Value >> 1
			switch a := f.Actions[0].(type) {
			case flow.SetField:
				list[slot] = byID[a.Value]
			case flow.SetAddr:
				if port := f.Actions[1].(flow.SetField).Value; port != 30000 {
					t.Fatalf("%v goes to port %d", f, port)
				}
				i := slices.IndexFunc(sp.ClusterEndpoints, func(e k8s.Endpoint) bool { return e.Addr.Addr() == a.Addr })
				list[slot] = sp.ClusterEndpoints[i].Addr
			}
		}
		return list
	}
	a, b := targets(0), targets(1)
	if !slices.Equal(a, b) || slices.Contains(a, netip.AddrPort{}) {
		t.Error("two nodes choose differently")
	}
}

// TestNotRelayed: an endpoint with the node's address cannot be told from a NodePort, and the node says so.
func TestNotRelayed(t *testing.T) {
	sp := consistentPort(2, 0)
	cfg := testConfig()
	cfg.LocalIPs = append(cfg.LocalIPs, sp.ClusterEndpoints[0].Addr.Addr())
	c := compile(t, cfg, sp)
	if lines := c.Missing(); len(lines) != 1 {
		t.Errorf("missing: %q", lines)
	}
	for _, f := range c.State().Flows {
		if f.Table == tableTrack && f.Match.DstPort == 30000 {
			t.Errorf("NodePort packets are taken for relayed ones: %v", f)
		}
	}
}
