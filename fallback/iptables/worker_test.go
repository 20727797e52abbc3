package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// stage is a worker on tables in memory, driven step by step, with the model that it was given.
type stage struct {
	t      *testing.T
	tables *fakeTables
	opts   fallback.Options
	model  *k8s.Model
	in     *dataplane.Inbox
	worker *worker
	status fallback.FamilyStatus
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, tables: newFakeTables(), opts: fallback.DefaultOptions(), model: &k8s.Model{
		Node:         k8s.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")}},
		Detector:     k8s.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("40.0.0.0/16")},
		Ports:        map[k8s.PortName]*k8s.ServicePort{},
		HealthChecks: map[k8s.ServiceName]k8s.HealthCheck{},
	}}
	s.opts.Log, s.opts.Hooks.Hooks = slog.New(slog.DiscardHandler), s.opts.Hooks.WithDefaults()
	s.restart(nftLimits)
	return s
}

// restart makes a new worker on the same tables, which is handed the whole model.
func (s *stage) restart(l limits) {
	s.in = dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
	s.worker = newWorker(fallback.NewWorker("iptables", k8s.IPv4, &s.opts, s.in), s.tables, l)
	s.worker.Report = func(f func(*fallback.FamilyStatus)) { f(&s.status) }
	s.in.Put(s.model, s.model.Everything())
}

// put changes the model.
func (s *stage) put(c k8s.Changes) {
	for n, sp := range c.Ports {
		if s.model.Ports[n] = sp; sp == nil {
			delete(s.model.Ports, n)
		}
	}
	for n, h := range c.HealthChecks {
		if delete(s.model.HealthChecks, n); h != nil {
			s.model.HealthChecks[n] = *h
		}
	}
	s.in.Put(s.model, c)
}

// step lets the worker do what is due, garbage included.
func (s *stage) step() {
	select {
	case <-s.in.Signal: // as run does
	default:
	}
	s.worker.TakeUpdates(s.worker)
	for range 3 {
		s.worker.NotUntil, s.worker.gcAt = time.Time{}, time.Unix(1, 0)
		s.worker.Round(context.Background(), s.worker)
	}
}

// diff compares the tables with the model.
func (s *stage) diff() string {
	s.t.Helper()
	d, err := diffFamily(context.Background(), s.tables, rules.NewCompiler(s.opts.Config, k8s.IPv4, s.model).Ruleset(s.model))
	must(s.t, err)
	return d
}

func (s *stage) must(what string) {
	s.t.Helper()
	if d := s.diff(); d != "" {
		s.t.Fatalf("%s: differs:\n%s\nlast error: %s", what, d, s.status.LastError)
	}
}

// generated brings the first n Service ports of those that generate makes.
func generated(n int) k8s.Changes {
	c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	for i := range n {
		p := generatePort(i)
		c.Ports[p.Name] = p
	}
	return c
}

// randomPort makes Service port number n in one of many shapes.
func randomPort(r *rand.Rand, n int) *k8s.ServicePort {
	protocol := []k8s.Protocol{"TCP", "UDP", "SCTP"}[n%3]
	p := &k8s.ServicePort{Name: k8s.PortName{
		ServiceName: k8s.ServiceName{Namespace: "default", Name: fmt.Sprint("s", n/2)}, Port: fmt.Sprint("p", n%2), Protocol: protocol, Family: k8s.IPv4,
	}}
	if r.IntN(4) == 0 {
		p.AffinitySeconds = 60
	}
	for i := range r.IntN(4) {
		e := k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n), byte(i + r.IntN(3))}), 80), Local: r.IntN(2) == 0}
		if !slices.ContainsFunc(p.ClusterEndpoints, func(o k8s.Endpoint) bool { return o.Addr == e.Addr }) {
			p.ClusterEndpoints = append(p.ClusterEndpoints, e)
			if e.Local {
				p.LocalEndpoints = append(p.LocalEndpoints, e)
			}
		}
	}
	policy := func() k8s.Policy { return []k8s.Policy{k8s.Cluster, k8s.Local}[r.IntN(2)] }
	external := policy()
	var ranges []netip.Prefix
	if r.IntN(3) == 0 {
		ranges = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}
	}
	for _, f := range []k8s.Frontend{
		{Type: k8s.ClusterIP, Address: netip.AddrFrom4([4]byte{40, 0, 0, byte(n / 2)}), Policy: policy()},
		{Type: k8s.ExternalIP, Address: netip.AddrFrom4([4]byte{30, 0, 0, byte(n / 2)}), Policy: external},
		{Type: k8s.LoadBalancer, Address: netip.AddrFrom4([4]byte{20, 0, 0, byte(n / 2)}), Policy: external, SourceRanges: ranges},
		{Type: k8s.NodePort, Policy: external},
	} {
		f.Port = uint16(80 + n%2)
		if f.Type == k8s.NodePort {
			f.Port = uint16(30000 + n)
		} else if r.IntN(3) == 0 {
			continue
		}
		f.WhenEmpty = k8s.Reject
		if f.Policy == k8s.Local && len(p.ClusterEndpoints) > 0 {
			f.WhenEmpty = k8s.Drop
		}
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

// Whatever comes in whatever order, what is installed is what the model asks for; also after restarts, also where only
// names of chains can be read back; and no transaction leaves a frontend without its whole chain.
func TestRandomChanges(t *testing.T) {
	first := nightly.Seed(t)
	for n := range uint64(nightly.Count(4, 80)) {
		seed := first + n
		r := rand.New(rand.NewPCG(seed, 1))
		s := newStage(t)
		s.tables.committed = func(f *fakeTables) { whole(t, f) }
		for i := range 60 {
			c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}, HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{}}
			for range r.IntN(8) {
				p := randomPort(r, r.IntN(30))
				c.Ports[p.Name] = p
				if r.IntN(3) == 0 {
					c.Ports[p.Name] = nil
				}
				if n := p.Name.ServiceName; r.IntN(3) == 0 {
					c.HealthChecks[n] = &k8s.HealthCheck{Port: uint16(32000 + r.IntN(100)), Local6: -1}
				} else {
					c.HealthChecks[n] = nil
				}
			}
			switch r.IntN(8) {
			case 0:
				c.Node = true
				s.model.Node.IPs = []netip.Addr{netip.AddrFrom4([4]byte{172, byte(15 + r.IntN(2)), 0, 2})}
			case 1:
				c.Node = true
				s.model.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("%d.0.0.0/16", 40+r.IntN(2)))}
			case 2:
				s.restart([]limits{nftLimits, {chains: 3, live: 2, deferred: 4, save: 0}, {chains: 3, live: 2, deferred: 4, save: 0, ahead: true}}[r.IntN(3)])
			}
			s.put(c)
			s.step()
			s.must(fmt.Sprintf("seed %d, change %d", seed, i))
		}
		for range 100 { // small transactions, many chains
			s.step()
		}
		left, _ := s.tables.ChainNames(context.Background(), "nat")
		for _, name := range left {
			if rules.IsServiceChain(name) && !strings.Contains(s.tables.String(), "-j "+name+"\n") {
				t.Fatalf("seed %d: chain %s is left and nothing leads there", seed, name)
			}
		}
	}
}

// whole checks that each chain of a Service that something leads to does something with a packet: it is not empty, and
// the rules of a spread add up to certainty.
func whole(t *testing.T, f *fakeTables) {
	for chain, list := range f.tables["nat"] {
		for _, r := range list {
			target := rules.Rule(r).Target()
			if !rules.IsServiceChain(target) {
				continue
			}
			to := f.tables["nat"][target]
			if len(to) == 0 && !strings.HasPrefix(target, "KUBE-EXT-") {
				t.Fatalf("%s leads to %s, which is empty", chain, target)
			}
			if strings.HasPrefix(target, "KUBE-SV") && strings.Contains(to[len(to)-1], "probability") {
				t.Fatalf("%s ends by chance: %v", target, to)
			}
		}
	}
}

// While one transaction of many commits, the next are read: also those of Services whose node ports share the rule that leads
// to KUBE-NODEPORTS, which waits until all are in. None stays open.
func TestReadAhead(t *testing.T) {
	s := newStage(t)
	s.restart(limits{chains: 3, live: 2, deferred: 4, save: 8000, ahead: true})
	c := generated(40)
	nodePort := uint16(30000)
	for _, p := range c.Ports {
		p.Frontends = append(p.Frontends, k8s.Frontend{Type: k8s.NodePort, Port: nodePort, Policy: k8s.Cluster, WhenEmpty: k8s.Reject})
		nodePort++
	}
	s.put(c)
	s.step()
	s.must("after")
	if s.tables.open != 0 || s.tables.mostOpen < readAhead {
		t.Errorf("%d transactions stay open, at most %d were; want %d at least", s.tables.open, s.tables.mostOpen, readAhead)
	}
}

// While some of the rules that lead to Services are given, once all are in, the next are read.
func TestReadHeldRulesAhead(t *testing.T) {
	s := newStage(t)
	s.restart(limits{chains: 3, live: 2, deferred: 4, save: 8000, ahead: true})
	c := generated(40)
	given, parts, mostOpen := 0, 0, 0
	s.tables.committed = func(f *fakeTables) {
		if n := len(f.tables["nat"][rules.Services]); n > given {
			given, parts, mostOpen = n, parts+1, max(mostOpen, f.open)
		}
	}
	s.put(c)
	s.step()
	s.must("after")
	if parts < 10 || s.tables.open != 0 || mostOpen < 1+readAhead {
		t.Errorf("%d transactions of 4 rules at most; %d stay open, at most %d were with the one that commits; want %d at least",
			parts, s.tables.open, mostOpen, 1+readAhead)
	}
}

// A Service that iptables refuses is named and waits; all others are served, what the refused one had stays, and once it
// is taken all is well.
func TestRefusedService(t *testing.T) {
	for name, l := range map[string]limits{"in one transaction": nftLimits, "one of many": {chains: 3, live: 2, deferred: 4, save: 8000, ahead: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRefusedService(t, l) })
		})
	}
}

func testRefusedService(t *testing.T, l limits) {
	s := newStage(t)
	s.restart(l)
	r := rand.New(rand.NewPCG(1, 2))
	c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	for n := range 40 {
		p := randomPort(r, n)
		p.ClusterEndpoints = []k8s.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 9, byte(n)}), 80)}}
		c.Ports[p.Name] = p
	}
	s.put(c)
	s.step()
	s.must("before")

	var refused []string
	s.worker.Refused = dataplane.NewRefusals[k8s.PortName]("iptables", s.opts.Log, func(r dataplane.Refusal) {
		if !strings.Contains(r.Reason, "10.0.99.99") {
			t.Errorf("%s: the reason %q does not give the line", r.Port, r.Reason)
		}
		refused = append(refused, r.Port.String())
	})
	s.tables.refuse = func(line string) bool { return strings.Contains(line, "10.0.99.99") }
	for n, p := range c.Ports {
		q := *p
		q.ClusterEndpoints = []k8s.Endpoint{{Addr: netip.MustParseAddrPort("10.0.98.98:80")}}
		if n.String() == "default/s3:p1" {
			q.ClusterEndpoints[0].Addr = netip.MustParseAddrPort("10.0.99.99:80")
		}
		c.Ports[n] = &q
	}
	s.put(c)
	s.step()
	if len(refused) == 0 || refused[0] != "default/s3:p1" || len(slices.Compact(refused)) != 1 {
		t.Fatalf("refused: %v", refused)
	}
	if !s.status.InStep || len(s.status.Refused) != 1 {
		t.Errorf("status: %+v", s.status)
	}
	for l := range strings.Lines(s.diff()) {
		if !strings.Contains(l, "-N KUBE-SEP-") && !strings.Contains(l, "10.0.99.99") && !strings.Contains(l, "default/s3:p1") {
			t.Errorf("differs without need: %s", l)
		}
	}
	if !strings.Contains(s.tables.String(), "--to-destination 10.0.9.7:80") {
		t.Error("what the refused Service had is gone")
	}
	refused = nil
	s.step()
	if len(refused) > 0 {
		t.Errorf("%v is tried again before its pause is over", refused)
	}
	s.tables.refuse = nil
	for _, r := range s.worker.Refused.All() { // the pause is over
		s.worker.Refused.Refuse(r.Port, r, time.Now().Add(-2*dataplane.RetryMost))
	}
	s.step()
	s.must("after")
	if s.worker.Refused.Len() > 0 || len(s.status.Refused) > 0 {
		t.Errorf("what was accepted still waits: %v; status: %v", s.worker.Refused.All(), s.status.Refused)
	}
}

// A worker with nothing to do sleeps until it looks at the rules again: after changes, after chains were left behind, and after a look.
func TestAtRest(t *testing.T) { synctest.Test(t, testAtRest) }

func testAtRest(t *testing.T) {
	s := newStage(t)
	asleep := func(when string) {
		t.Helper()
		s.step()
		s.must(when)
		if d := time.Until(s.worker.Next()); d < s.opts.SyncPeriod/2 {
			t.Errorf("%s: it wakes after %v, looks are %v apart", when, d, s.opts.SyncPeriod)
		}
	}
	c := generated(5)
	s.put(c)
	asleep("the first Services")
	for n := range c.Ports {
		c.Ports[n] = nil
		break
	}
	s.put(c)
	asleep("one Service less")
	if len(s.worker.have.garbage) > 0 {
		t.Errorf("chains are left behind: %v", s.worker.have.garbage)
	}
	for _, deep := range []bool{false, true} {
		s.worker.CheckAt, s.worker.fullCheckAt = time.Now().Add(-time.Second), time.Now().Add(time.Hour)
		if deep {
			s.worker.fullCheckAt = time.Now().Add(-time.Second)
		}
		asleep("a look")
		if d := time.Until(s.worker.fullCheckAt); d < s.opts.SyncPeriod/2 {
			t.Errorf("the next close look is due in %v", d)
		}
	}
}

// A rule that was held back until all Services were in, and is then refused, is named and tried again; it holds up nothing.
func TestHeldRuleRefused(t *testing.T) {
	s := newStage(t)
	s.restart(limits{chains: 3, live: 2, deferred: 4, save: 8000, ahead: true})
	c := generated(20)
	s.tables.refuse = func(line string) bool {
		return strings.Contains(line, " "+rules.ClusterIPs+" ") && strings.Contains(line, "40.0.0.7/32")
	}
	s.put(c)
	s.step()
	if s.status.LastError == "" {
		t.Error("status does not say that a rule was refused")
	}
	for l := range strings.Lines(s.diff()) {
		if !strings.Contains(l, "40.0.0.7/32") && !strings.HasPrefix(l, "*") {
			t.Errorf("differs without need: %s", l)
		}
	}
	s.tables.refuse = nil
	s.put(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}, Node: true})
	s.step()
	s.must("after")
}

// If iptables takes nothing at all, it is not a Service's fault: few are tried, and all are pending.
func TestEverythingRefused(t *testing.T) {
	s := newStage(t)
	tries := 0
	s.tables.refuse = func(line string) bool {
		if strings.HasPrefix(line, ":KUBE-SEP") {
			tries++
			return true
		}
		return false
	}
	s.put(generated(2000))
	s.worker.TakeUpdates(s.worker)
	s.worker.Round(context.Background(), s.worker)
	if tries == 0 || tries > 20*maxRefused {
		t.Errorf("%d tries", tries)
	}
	if s.status.InStep || s.status.Pending == 0 || s.status.LastError == "" || time.Until(s.worker.NotUntil) < dataplane.RetryFirst/2 {
		t.Errorf("status: %+v, pause until %v", s.status, s.worker.NotUntil)
	}
	s.tables.refuse = nil
	for _, r := range s.worker.Refused.All() { // the pause is over
		s.worker.Refused.Refuse(r.Port, r, time.Now().Add(-2*dataplane.RetryMost))
	}
	s.step()
	s.must("after")
}

func generatePort(n int) *k8s.ServicePort {
	return &k8s.ServicePort{
		Name:             k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", n)}, Protocol: "TCP", Family: k8s.IPv4},
		ClusterEndpoints: []k8s.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)}},
		Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.AddrFrom4([4]byte{40, 0, byte(n >> 8), byte(n)}), Port: 80,
			Policy: k8s.Cluster, WhenEmpty: k8s.Reject}},
	}
}

// One endpoint's change costs the same calls and the same input for iptables-restore, however many Services there are, over both back
// ends; and no transaction over nf_tables has more chains than its limit, because its time grows with the square of them.
func TestCostOfAChange(t *testing.T) {
	for name, l := range map[string]limits{"nf_tables": nftLimits, "legacy": legacyLimits} {
		var before string
		for _, n := range []int{briefAbove + 100, 5 * briefAbove} {
			s := newStage(t)
			s.restart(l)
			committed := 0
			s.tables.committed = func(f *fakeTables) {
				if chains := strings.Count(f.input.String()[committed:], "\n:"); chains > max(l.chains, l.live)+2 { // it ends with a whole Service
					t.Errorf("%s, %d Services: a transaction has %d chains", name, n, chains)
				}
				committed = f.input.Len()
			}
			c := generated(n)
			s.put(c)
			s.step()
			s.must("at first")

			clear(s.tables.calls)
			p := *generatePort(7)
			p.ClusterEndpoints = []k8s.Endpoint{{Addr: netip.MustParseAddrPort("10.250.0.1:80")}}
			s.put(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: &p}})
			input := s.tables.input.Len()
			s.step()
			cost := fmt.Sprintf("%v, and the input\n%s", s.tables.calls, s.tables.input.String()[input:])
			s.must("after a change")
			if before != "" && cost != before {
				t.Errorf("%s: a change of one of few Services costs %s\nof one of %d: %s", name, before, n, cost)
			}
			before = cost
		}
	}
}

// unreadable are tables of which one chain cannot be read.
type unreadable struct {
	*fakeTables
	chain string
}

func (u unreadable) Rules(ctx context.Context, table, chain string) ([]string, bool, error) {
	if chain == u.chain {
		return nil, false, errors.New("unreadable")
	}
	return u.fakeTables.Rules(ctx, table, chain)
}

// A fixed chain that cannot be read is an error, not one that is missing: writing it again would empty it first.
func TestUnreadableFixedChain(t *testing.T) {
	s := newStage(t)
	s.step()
	for table, chains := range s.worker.want.fixed.Chains {
		for _, c := range chains {
			s.worker.tables = unreadable{s.tables, c.Name}
			if err := s.worker.installFixed(t.Context()); err == nil {
				t.Errorf("%s, %s: no error", table, c.Name)
			}
		}
	}
}
