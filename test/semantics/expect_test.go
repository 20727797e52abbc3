//go:build linux

package semantics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// dual is an address in both families; either may be the zero Addr.
type dual struct{ v4, v6 netip.Addr }

// of returns a host's addresses.
func of(h *testbed.Host) dual { return dual{h.IP4, h.IP6} }

// numbered returns address n of two prefixes whose texts end where the number goes. It has the same digits in both.
func numbered(v4, v6 string, n int) dual {
	return dual{netip.MustParseAddr(fmt.Sprint(v4, n)), netip.MustParseAddr(fmt.Sprint(v6, n))}
}

// clusterIP is a Service address of the range that the router leads to the node.
func clusterIP(n int) dual { return numbered("40.0.0.", "fd00:40::", n) }

// vip is a load balancer's or external address, also led to the node.
func vip(n int) dual { return numbered("20.0.0.", "fd00:20::", n) }

// target is an address and port to call.
type target struct {
	dual
	port uint16
}

// on returns a target.
func (d dual) on(port uint16) target { return target{d, port} }

func (t target) addresses() (list []netip.AddrPort) {
	for _, a := range []netip.Addr{t.v4, t.v6} {
		if a.IsValid() {
			list = append(list, netip.AddrPortFrom(a, t.port))
		}
	}
	return list
}

// v4 and v6 narrow a target to one family.
func v4(t target) target { t.dual.v6 = netip.Addr{}; return t }
func v6(t target) target { t.dual.v4 = netip.Addr{}; return t }

// probe is one clause of the specification: who calls what, and what becomes of it.
type probe struct {
	name string
	from *testbed.Host
	to   target
	want outcome
	// proto is tcp unless it says udp or sctp.
	proto string
	// needs names what a plane must have for want; one that lacks it does what without says, or is not asked.
	needs   feature
	without *outcome
	// local is the client's own end; usually the kernel chooses.
	local dual
	// controlled probes may hear nothing: they wait until controls are answered.
	controlled bool
}

// outcome is what becomes of new connections.
type outcome struct {
	// by are the hosts that answer, each of them sooner or later. Without any, err is what clients meet.
	by     []*testbed.Host
	source source
	err    error
}

// source is whose address the server sees.
type source int

const (
	anySource    source = iota
	clientSource        // the client's own
	nodeSource          // the node's: masqueraded
)

// by: each connection is answered by one of the hosts, and none of them is left out.
func by(hosts ...*testbed.Host) outcome { return outcome{by: hosts} }

// keep: and they see the client's own address.
func (o outcome) keep() outcome { o.source = clientSource; return o }

// masquerade: and they see the node's address.
func (o outcome) masquerade() outcome { o.source = nodeSource; return o }

var (
	// refused: the client is told.
	refused = outcome{err: testbed.ErrRefused}
	// dropped: the client hears nothing until controls that it asked later are answered.
	dropped = outcome{err: testbed.ErrTimeout}
)

const (
	fewConnections = 8 // how often each probe asks at least: a wrong endpoint among two is found with 255/256
	controls       = 3 // how many controls follow a question that is to be dropped, one after the other
)

// manyConnections is how often a probe asks at most, until all of n endpoints have answered.
func manyConnections(n int) int { return max(fewConnections, chance.Trials(1/float64(n))) }

// controlIP is the ClusterIP of a Service that every cluster has, with an endpoint at c.here: see cluster.control.
var controlIP = clusterIP(200)

// addControl adds the Service of controls.
func (c *cluster) addControl() {
	c.serve(service("control", controlIP, ports(
		v1.ServicePort{Name: "tcp", Port: 80, Protocol: v1.ProtocolTCP},
		v1.ServicePort{Name: "udp", Port: 80, Protocol: v1.ProtocolUDP})), c.here)
}

// control asks a Service that serves every host. Who calls it has sent packets before that go the same way to the node's Services:
// once the controls are answered, those have been served, refused or dropped.
func (c *cluster) control(ctx context.Context, p *probe, to netip.AddrPort) error {
	for range controls {
		for _, a := range controlIP.on(80).addresses() {
			if a.Addr().Is4() != to.Addr().Is4() {
				continue
			}
			if _, err := p.from.Ask(ctx, p.proto, a.String()); err != nil {
				return fmt.Errorf("the control: %w", err)
			}
		}
	}
	return nil
}

// expect makes the connections of all probes at the same time, over each family, and reports each as a subtest. Those for what
// the plane lacks have to fail.
func (c *cluster) expect(t *testing.T, probes ...probe) {
	t.Helper()
	type result struct {
		name string
		err  error
	}
	var results []*result
	var wg sync.WaitGroup
	slots := make(chan struct{}, 24)
	for _, p := range probes {
		p.proto = cmp.Or(p.proto, "tcp")
		why, lacks := c.plane.lacks[p.needs]
		if lacks && p.without != nil {
			p.want, lacks = *p.without, false
		}
		p.controlled = lacks || errors.Is(p.want.err, testbed.ErrTimeout)
		for _, to := range p.to.addresses() {
			r := &result{name: fmt.Sprintf("%s/%s", p.name, familyOf(to.Addr()))}
			results = append(results, r)
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if r.err = p.check(c, to); lacks && r.err == nil {
					r.err = fmt.Errorf("the plane has it, and should not: %s", why)
				} else if lacks {
					r.err = nil
				}
			})
		}
	}
	wg.Wait()
	for _, r := range results {
		t.Run(r.name, func(t *testing.T) {
			if r.err != nil {
				t.Error(r.err)
			}
		})
	}
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (p *probe) check(c *cluster, to netip.AddrPort) error {
	call := fmt.Sprintf("%s -> %s %s", p.from.Name, p.proto, to)
	if len(p.want.by) == 0 {
		return p.checkFailure(c, call, to)
	}
	seen := map[string]bool{}
	for n := 1; n <= fewConnections || len(seen) < len(p.want.by); n++ {
		if n > manyConnections(len(p.want.by)) {
			return fmt.Errorf("%s: in %d connections only %s answered, want %s", call, n-1, keys(seen), names(p.want.by))
		}
		if p.proto == "sctp" && n > 1 && c.plane.lacks[sctpPorts] != "" {
			break // further ones are the same connection
		}
		a, err := p.ask(c, to)
		if err != nil {
			return fmt.Errorf("%s: %w, want an answer by %s", call, err, names(p.want.by))
		}
		if !slices.ContainsFunc(p.want.by, func(h *testbed.Host) bool { return h.Name == a.Pod }) {
			return fmt.Errorf("%s: answered by %s, want %s", call, a.Pod, names(p.want.by))
		}
		seen[a.Pod] = true
		if err := p.checkSource(c, a); err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
	}
	return nil
}

func (p *probe) checkSource(c *cluster, a testbed.Answer) error {
	saw := a.Client.Addr()
	client, node := p.from.IP(saw), c.Node.IP(saw)
	if p.local.v4.IsValid() {
		client = p.local.v4
		if saw.Is6() {
			client = p.local.v6
		}
	}
	switch {
	case p.want.source == clientSource && saw != client:
		return fmt.Errorf("%s saw %s, want the client's own address %s", a.Pod, saw, client)
	case p.want.source == nodeSource && saw != node:
		return fmt.Errorf("%s saw %s, want the node's address %s", a.Pod, saw, node)
	}
	return nil
}

func (p *probe) checkFailure(c *cluster, call string, to netip.AddrPort) error {
	a, err := p.ask(c, to)
	switch {
	case err == nil:
		return fmt.Errorf("%s: answered by %s, want it %s", call, a.Pod, p.want.err)
	case !errors.Is(err, p.want.err):
		return fmt.Errorf("%s: %w, want it %s", call, err, p.want.err)
	}
	return nil
}

func (p *probe) ask(c *cluster, to netip.AddrPort) (testbed.Answer, error) {
	local := p.local.v4
	if to.Addr().Is6() {
		local = p.local.v6
	}
	o := testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true, LocalIP: local}}
	if p.controlled {
		o.Until = func(ctx context.Context) error { return c.control(ctx, p, to) }
	}
	return p.from.AskWith(c.ctx, p.proto, to.String(), o)
}

func names(hosts []*testbed.Host) string {
	var s []string
	for _, h := range hosts {
		s = append(s, h.Name)
	}
	return strings.Join(s, ", ")
}

func keys(m map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }

// elsewhere gives an address to the client outside and has the router send packets for it there, so that it answers
// what the node's proxy leaves alone.
func (c *cluster) elsewhere(ds ...dual) {
	c.t.Helper()
	for _, d := range ds {
		for _, a := range []netip.Addr{d.v4, d.v6} {
			if a.IsValid() {
				p := netip.PrefixFrom(a, a.BitLen())
				must(c.t, c.External.AddAddr("eth0", p))
				must(c.t, c.Router.AddRoute(p, c.External.IP(a), "external"))
			}
		}
	}
}
