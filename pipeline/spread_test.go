package pipeline

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/nightly"
)

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

// counts returns the number of slots of each endpoint.
func (t slots) counts(n int) []int {
	c := make([]int, n)
	for _, owner := range t {
		c[owner]++
	}
	return c
}

// In a new table each endpoint has its share, in the slots that Open vSwitch makes of the group's weights.
func TestNewSlotsAreEven(t *testing.T) {
	sizes := []int{65, 100, 128, 200, 256, 257, 300, 1000, 1024, 2000, 4097, 5000}
	for n := 2; n <= 64; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		shares := newShares(ones(n), n/3)
		table := newSlots(shares)
		most := 20
		switch {
		case n < 8:
			most = 13
		case sum(shares) < maxSlots:
			most = 10
		}
		for i, s := range table.counts(n) {
			if share := 100 * s * n / len(table); share < 99-most || share > 100+most {
				t.Errorf("%d endpoints: endpoint %d has %d %% of its share of %d slots", n, i, share, len(table))
			}
		}
		if sum(shares) > maxSlots {
			continue
		}
		weights, owner := bucketWeights(shares)
		layout := webster(weights)
		for j, b := range layout {
			if int(table[j%len(table)]) != owner[b] {
				t.Fatalf("%d endpoints: slot %d is of endpoint %d in the table, %d in the group", n, j, table[j%len(table)], owner[b])
			}
		}
		if len(weights) > n+1 || len(layout) > maxSlots || !releasesAgree(weights) {
			t.Errorf("%d endpoints: %d buckets, %d slots; releases of Open vSwitch agree: %t", n, len(weights), len(layout), releasesAgree(weights))
		}
	}
	if webster([]int{256, 1}) != nil || webster(nil) != nil || webster([]int{0}) != nil {
		t.Error("a group that Open vSwitch does not lay out has a table")
	}
}

// churn is a Service port with endpoints that come and go.
type churn struct {
	rng  *rand.Rand
	sp   k8s.ServicePort
	next int
}

func newChurn(rng *rand.Rand, n int) *churn {
	c := &churn{rng: rng, sp: *shape{Name: "web", Types: all[:1]}.ServicePort()}
	for range n {
		c.add()
	}
	return c
}

func (c *churn) add() {
	c.next++
	e := k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(c.rng.IntN(256)), byte(c.next >> 8), byte(c.next)}), 80)}
	es := append(slices.Clone(c.sp.ClusterEndpoints), e)
	slices.SortFunc(es, func(a, b k8s.Endpoint) int { return a.Addr.Compare(b.Addr) })
	c.sp.ClusterEndpoints = es
}

func (c *churn) remove() {
	i := c.rng.IntN(len(c.sp.ClusterEndpoints))
	c.sp.ClusterEndpoints = slices.Delete(slices.Clone(c.sp.ClusterEndpoints), i, i+1)
}

// port returns the present Service port.
func (c *churn) port() *k8s.ServicePort { sp := c.sp; return &sp }

// chosen returns the endpoint for each value of a hash of hashBits bits.
func chosen(c *Compiler, sp *k8s.ServicePort, hashBits int) []netip.AddrPort {
	p := c.ports[sp.Name]
	t := p.slots(k8s.Anywhere)
	out := make([]netip.AddrPort, 1<<hashBits)
	for j := range out {
		out[j] = sp.ClusterEndpoints[t[j%len(t)]].Addr
	}
	return out
}

// chosenBy returns the same by the flows and groups alone, as Open vSwitch takes them.
func chosenBy(t *testing.T, c *Compiler, sp *k8s.ServicePort, hashBits int) []netip.AddrPort {
	t.Helper()
	flows, groups := c.Objects(sp.Name)
	if len(groups) != 1 {
		t.Fatalf("%d groups", len(groups))
	}
	weights := make([]int, len(groups[0].Buckets))
	for i, b := range groups[0].Buckets {
		weights[i] = int(b.Weight)
	}
	layout := webster(weights)
	best := make([]*flow.Flow, 1<<hashBits) // of tableWide, by reg3
	for _, f := range flows {
		if f.Table != tableWide {
			continue
		}
		for v := f.Match.Reg[3].Value; v < 1<<hashBits; v += f.Match.Reg[3].Mask + 1 {
			if best[v] == nil || f.Priority > best[v].Priority {
				best[v] = f
			}
		}
	}
	out := make([]netip.AddrPort, 1<<hashBits)
	for h := range out {
		as := groups[0].Buckets[layout[h%len(layout)]].Actions
		if copied, ok := as[0].(flow.Copy); ok {
			if f := best[h&(1<<copied.Src.N-1)]; f != nil {
				as = f.Actions
			}
		}
		out[h] = translation(as)
	}
	return out
}

// moves counts the choices that differ.
func moves(before, after []netip.AddrPort) (n int) {
	for j := range after {
		if after[j] != before[j] {
			n++
		}
	}
	return n
}

// Endpoints come and go in random order, one at a time: each change moves at most 1.2 times the share of one endpoint, and touches
// at most two objects for each of its slots. Each endpoint keeps its share. What is installed chooses as the table does.
func TestEndpointChangesMoveLittle(t *testing.T) {
	for _, n := range []int{2, 3, 5, 8, 10, 16, 40, 64, 100, 130, 256, 1024, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			steps := nightly.Count(20, 200)
			if n > maxSlots {
				steps = nightly.Count(3, 12)
			}
			hashBits := bits.Len(uint(mostSlots(2 * n)))
			rng := rand.New(rand.NewPCG(uint64(n), 5))
			model := newChurn(rng, n)
			c := compile(t, testConfig(), model.port())
			before := chosen(c, model.port(), hashBits)
			most, mostObjects := 0.0, 0.0
			for step := range steps {
				was := len(model.sp.ClusterEndpoints)
				if was < 3 || was < 2*n && rng.IntN(2) == 0 {
					model.add()
				} else {
					model.remove()
				}
				sp := model.port()
				d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
				after := chosen(c, sp, hashBits)
				if step%10 == 0 && !slices.Equal(after, chosenBy(t, c, sp, hashBits)) {
					t.Fatalf("step %d: the flows do not choose as the table does", step)
				}
				now := len(sp.ClusterEndpoints)
				moved := moves(before, after)
				change := float64(moved) / float64(len(after)) * float64(max(was, now))
				most = max(most, change)
				if change > 1.2 {
					t.Fatalf("step %d, %d to %d endpoints: %.3f of the choices move, %.2f shares", step, was, now, float64(moved)/float64(len(after)), change)
				}
				p := c.ports[sp.Name]
				table := p.slots(k8s.Anywhere)
				objects := float64(len(d.SetFlows) + len(d.DelFlows) + len(d.SetGroups) + len(d.DelGroups))
				limit := 2*float64(len(table))/float64(now) + 8
				mostObjects = max(mostObjects, objects/limit)
				if objects > limit {
					t.Fatalf("step %d, %d to %d endpoints: %.0f objects, limit %.1f", step, was, now, objects, limit)
				}
				for i, s := range table.counts(now) {
					if share := float64(s*now) / float64(len(table)); share < 0.8 || share > 1.2 {
						t.Fatalf("step %d, %d endpoints: endpoint %d has %.2f of its share of %d slots", step, now, i, share, len(table))
					}
				}
				before = after
			}
			t.Logf("at most %.2f shares moved, %.2f of the objects' limit", most, mostObjects)
		})
	}
}

// A table that has become far too large shrinks, so that a Service that was large once does not cost its former slots for ever.
func TestTableShrinks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	table := newSlots(newShares(ones(1000), 0))
	for n := 999; n > 1; n-- {
		gone := uint32(rng.IntN(n + 1))
		for j, owner := range table {
			switch {
			case owner == gone:
				table[j] = vacant
			case owner > gone:
				table[j]--
			}
		}
		if table = deal(table, ones(n)); len(table) > maxOversize*mostSlots(n) {
			t.Fatalf("%d endpoints have %d slots", n, len(table))
		}
	}
}

// adopt compares a Compiler with a switch and takes over the switch's slots.
func adopt(c *Compiler, have *flow.State) *flow.Delta {
	x := c.Compare()
	x.Adopt()
	feed(x, have)
	return x.Delta()
}

// A process that starts beside a switch that was programmed through many changes changes nothing, and goes on as the one before
// would have. If an endpoint has gone meanwhile, it moves that one's choices only.
func TestAdopt(t *testing.T) {
	for _, n := range []int{2, 3, 10, 50, 70, 300, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(n), 9))
			model := newChurn(rng, n)
			c := compile(t, testConfig(), model.port())
			for range 30 {
				if rng.IntN(2) == 0 || len(model.sp.ClusterEndpoints) < 3 {
					model.add()
				} else {
					model.remove()
				}
				sp := model.port()
				c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
				next := compile(t, testConfig(), sp)
				if d := adopt(next, c.State()); !d.Empty() {
					t.Fatalf("%d endpoints: a new process sets %d flows and %d groups, deletes %d and %d", len(sp.ClusterEndpoints),
						len(d.SetFlows), len(d.SetGroups), len(d.DelFlows), len(d.DelGroups))
				}
				equal(t, "the new process", next.State(), c.State())
				if d := compared(next, c.State()).Delta(); !d.Empty() || next.Flows() != c.Flows() || next.Groups() != c.Groups() {
					t.Fatalf("the new process counts %d flows and %d groups, the old one %d and %d; %v", next.Flows(), next.Groups(), c.Flows(), c.Groups(), printed(d))
				}
			}
			const hashBits = 14
			before, have := chosen(c, model.port(), hashBits), c.State()
			was := len(model.sp.ClusterEndpoints)
			model.remove()
			next := compile(t, testConfig(), model.port())
			have.Apply(adopt(next, have))
			equal(t, "after the endpoint went", have, next.State())
			moved := moves(before, chosen(next, model.port(), hashBits))
			if change := float64(moved*was) / float64(len(before)); change > 1.2 && was > 2 {
				t.Errorf("%.2f shares moved when an endpoint went between two processes", change)
			}
		})
	}
}

// Groups that are not nkp's work, or too uneven, are replaced.
func TestAdoptTrustsNothing(t *testing.T) {
	sp := shape{Name: "web", Cluster: 4, Types: all[:1]}.ServicePort()
	want := compile(t, testConfig(), sp)
	_, groups := want.Objects(sp.Name)
	for name, spoil := range map[string]func(g *flow.Group){
		"no bucket":      func(g *flow.Group) { g.Buckets = nil },
		"uneven":         func(g *flow.Group) { g.Buckets[0].Weight = 7 },
		"too many":       func(g *flow.Group) { g.Buckets[0].Weight = 60000 },
		"no weight":      func(g *flow.Group) { g.Buckets[0].Weight = 0 },
		"another method": func(g *flow.Group) { g.Method = flow.UnknownMethod },
		"one endpoint":   func(g *flow.Group) { g.Buckets = g.Buckets[:1] },
		"endless copy": func(g *flow.Group) {
			g.Buckets[0].Actions = []flow.Action{flow.Copy{Src: flow.Subfield{Field: flow.DPHashValue, N: 32}, Dst: flow.Subfield{Field: flow.Reg3, N: 32}}}
		},
		"wide without flows": func(g *flow.Group) {
			g.Buckets[0].Actions = []flow.Action{flow.Copy{Src: flow.Subfield{Field: flow.DPHashValue, N: 9}, Dst: flow.Subfield{Field: flow.Reg3, N: 9}}}
		},
	} {
		g := *groups[0]
		g.Buckets = slices.Clone(g.Buckets)
		spoil(&g)
		have := want.State()
		have.Groups[g.ID] = &g
		c := compile(t, testConfig(), sp)
		have.Apply(adopt(c, have))
		equal(t, name, have, c.State())
		for i, s := range c.ports[sp.Name].slots(k8s.Anywhere).counts(4) {
			if share := float64(4*s) / float64(len(c.ports[sp.Name].slots(k8s.Anywhere))); share < 0.8 || share > 1.2 {
				t.Errorf("%s: endpoint %d has %.2f of its share", name, i, share)
			}
		}
	}
}

// Weights divide the slots: two endpoints of 7 and 3 get 70 % and 30 % within 2 % of that, one of ten with a hundredth of the
// others' weight gets a slot. A change of weights moves no more than the shares do, and a new process keeps the slots.
func TestWeights(t *testing.T) {
	for _, weights := range [][]int{{7, 3}, {3, 7, 7}, {1, 100, 100}, {2, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
		table := newSlots(newShares(weights, 0))
		for i, s := range table.counts(len(weights)) {
			want := float64(len(table)*weights[i]) / float64(sum(weights))
			if off := float64(s)/want - 1; s == 0 || want > 1 && (off < -0.02 || off > 0.02) && len(table) < maxSlots {
				t.Errorf("weights %v: endpoint %d has %d of %d slots, want %.1f", weights, i, s, len(table), want)
			}
		}
	}
	rng := rand.New(rand.NewPCG(7, 3))
	for range nightly.Count(100, 3000) { // all releases of Open vSwitch must make the same of a group
		sp := shape{Name: "web", Cluster: 2 + rng.IntN(20), Types: all[:1]}.ServicePort()
		most := []int{2, 4, k8s.MaxWeight}[rng.IntN(3)]
		for i := range sp.ClusterEndpoints {
			sp.ClusterEndpoints[i].MoreWeight = uint8(rng.IntN(most))
		}
		_, groups := compile(t, testConfig(), sp).Objects(sp.Name)
		var buckets []int
		for _, b := range groups[0].Buckets {
			buckets = append(buckets, int(b.Weight))
		}
		if !releasesAgree(buckets) {
			t.Fatalf("weights %v: releases of Open vSwitch disagree on buckets of weights %v", weights(sp.ClusterEndpoints), buckets)
		}
	}
	sp := shape{Name: "web", Cluster: 2, Types: all[:1]}.ServicePort()
	c := compile(t, testConfig(), sp)
	before := chosen(c, sp, 9)
	for _, more := range []uint8{6, 1, 0, 99} {
		changed := *sp
		changed.ClusterEndpoints = slices.Clone(sp.ClusterEndpoints)
		changed.ClusterEndpoints[0].MoreWeight = more
		was := weights(sp.ClusterEndpoints)
		sp = &changed
		c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
		after := chosen(c, sp, 9)
		moved := moves(before, after)
		now := weights(sp.ClusterEndpoints)
		must := 512 * max(float64(now[0])/float64(sum(now))-float64(was[0])/float64(sum(was)), float64(was[0])/float64(sum(was))-float64(now[0])/float64(sum(now)))
		if float64(moved) > must+10 || float64(moved) < must-10 {
			t.Errorf("from weights %v to %v %d of 512 choices move, %.0f must", was, now, moved, must)
		}
		next := compile(t, testConfig(), sp)
		if d := adopt(next, c.State()); !d.Empty() {
			t.Errorf("weights %v: a new process changes the switch: %v", now, printed(d))
		}
		if !slices.Equal(after, chosenBy(t, c, sp, 9)) {
			t.Errorf("weights %v: the group does not choose as the table does", now)
		}
		before = after
	}
}

// One endpoint changes among many that are spread over nodes, each with a /24 of its own for every four of them.
func BenchmarkOneOfManyEndpoints(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var states [2]*k8s.ServicePort
			for i := range states {
				states[i] = shape{Name: "web", Cluster: n + i, Types: all[:1]}.ServicePort()
				for j := range states[i].ClusterEndpoints {
					states[i].ClusterEndpoints[j].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j >> 10), byte(j >> 2), byte(j)}), 80)
				}
			}
			c := compile(b, testConfig(), states[0])
			for i := 1; b.Loop(); i++ {
				sp := states[i%2]
				c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp})
			}
		})
	}
}
