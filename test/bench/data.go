//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/bench/traffic"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Data is what a packet to a Service costs at one number of Services, beside one to the same pods without a Service.
type Data struct {
	Kind     rig.Kind
	Services int

	Throughput                 Pairs // bits per second of one TCP stream
	Latency50, Latency99       Pairs // microseconds of a request over a connection that is there
	Connections1, Connections8 Pairs // new connections per second, with 1 and 8 clients
	// SwitchCPU is ovs-vswitchd's CPU time per new connection in microseconds, with 8 clients; nil where ovs-vswitchd does not forward.
	SwitchCPU Pairs
	// Refusal is how long a refused connection takes, in microseconds: nkp's refusal at a port that the Service lacks, and the kernel's
	// at a port of a pod where nothing listens. nil: kube-proxy's modes do not all refuse.
	Refusal Pairs
	// Spread is of 8 clients that connect to all Services with pods in turns.
	Spread Spread
}

// Pair is one round or turn: through the VIP, and straight to the pods.
type Pair struct{ VIP, Direct float64 }

// Pairs are the rounds of one measurement.
type Pairs []Pair

// Ratio is the median of VIP over direct.
func (p Pairs) Ratio() float64 { return p.median(func(r Pair) float64 { return r.VIP / r.Direct }) }

// VIP and Direct are medians.
func (p Pairs) VIP() float64    { return p.median(func(r Pair) float64 { return r.VIP }) }
func (p Pairs) Direct() float64 { return p.median(func(r Pair) float64 { return r.Direct }) }

func (p Pairs) median(f func(Pair) float64) float64 {
	var list []float64
	for _, r := range p {
		list = append(list, f(r))
	}
	return median(list)
}

// median returns the middle of a list, which it sorts, or the mean of the two in the middle; of an empty one 0.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	if n := len(list); n%2 == 0 {
		return (list[n/2-1] + list[n/2]) / 2
	}
	return list[len(list)/2]
}

// quotient returns the 95 % confidence interval of the quotient of two ratios, by bootstrap over their rounds. With fewer than eight rounds
// it is too wide to say anything, and zero.
func quotient(a, b Pairs) (within [2]float64) {
	const fewest = 8
	if len(a) < fewest || len(b) < fewest {
		return within
	}
	return interval(func(rng *rand.Rand) float64 { return Pairs(resample(rng, a)).Ratio() / Pairs(resample(rng, b)).Ratio() })
}

// Spread is what a switch has to do for connections to many Services.
type Spread struct {
	VIPs      int
	Rate      float64 // new connections per second
	Megaflows int     // in the datapath afterwards; 0 without a switch
	// Upcalls is how many packets per connection the datapath had to ask ovs-vswitchd about, at first, without any flow
	// in it, and WarmUpcalls when most of them are cached.
	Upcalls, WarmUpcalls float64
}

// data measures in rounds: each thing through the VIP and straight to the pods, in turns. Where one client is at work it
// takes turns after every request, many clients turn together ten times a second: the machine's other load meets both alike.
//
// Where ovs-vswitchd's main thread forwards (interfaces that are not DPDK's), it searches its cached flows by mask in the
// order in which the masks came up first; only poll-mode threads sort them by use. Whoever sent the first packet is found
// sooner ever after. So each must have been first as often as the other.
func (m *measurement) data(ctx context.Context) (Data, error) {
	d := Data{Kind: m.Kind, Services: m.services}
	vip, direct := dataTargets()
	vips := slices.Repeat(vip, len(direct)) // as many connections that are kept
	if err := errors.Join(m.warm(ctx, vip), m.warm(ctx, direct)); err != nil {
		return d, err
	}
	for round := range m.plan.rounds {
		first, second := vip, direct
		if round%2 == 1 {
			first, second = direct, vip
		}
		if err := errors.Join(m.forgetFlows(), m.warm(ctx, first), m.warm(ctx, second)); err != nil {
			return d, err
		}
		if err := m.throughput(ctx, &d); err != nil {
			return d, err
		}
		for _, connect := range []bool{false, true} {
			r, err := m.traffic(ctx, traffic.Options{Targets: vips, Against: direct, Clients: 1, Duration: 2 * m.plan.round, Connect: connect})
			switch {
			case err != nil:
				return d, err
			case connect:
				d.Connections1 = append(d.Connections1, Pair{r.Rate(), r.Against.Rate()})
			default:
				d.Latency50 = append(d.Latency50, Pair{r.P50, r.Against.P50})
				d.Latency99 = append(d.Latency99, Pair{r.P99, r.Against.P99})
			}
		}
		if err := m.connections(ctx, &d, vip, direct); err != nil {
			return d, err
		}
		if err := m.refusals(ctx, &d); err != nil {
			return d, err
		}
	}
	var err error
	if d.Spread, err = m.spread(ctx); err != nil {
		return d, err
	}
	m.say("VIP/direct: throughput %.3f, latency p50 %.3f, connections %.3f and %.3f, switch CPU %.3f, refusal %.3f",
		d.Throughput.Ratio(), d.Latency50.Ratio(), d.Connections1.Ratio(), d.Connections8.Ratio(), d.SwitchCPU.Ratio(), d.Refusal.Ratio())
	return d, nil
}

// dataTargets are where clients connect through the VIP, and straight to the pods behind it.
func dataTargets() (vip, direct []string) {
	for _, ip := range rig.Data().Endpoints {
		direct = append(direct, fmt.Sprintf("%s:%d", ip, rig.DirectPort))
	}
	return []string{rig.Data().Frontend()}, direct
}

// turn is short beside what changes on a shared machine, and long beside a connection.
const turn = 100 * time.Millisecond

// throughput measures one TCP stream, turn by turn.
func (m *measurement) throughput(ctx context.Context, d *Data) error {
	vip, direct := fmt.Sprintf("%s:%d", rig.Bulk().VIP, rig.BulkPort), fmt.Sprintf("%s:%d", rig.Bulk().Endpoints[0], rig.DirectBulkPort)
	r, err := m.traffic(ctx, traffic.Options{Targets: []string{vip}, Against: []string{direct}, Clients: 1, Duration: 4 * m.plan.round, Blocks: true, Turn: turn})
	if err != nil {
		return err
	}
	return d.Throughput.addTurns(r, func(t traffic.Turn) float64 { return t.Rate() * traffic.BlockSize * 8 })
}

// addTurns adds what is measured of each pair of turns.
func (p *Pairs) addTurns(r traffic.Result, value func(traffic.Turn) float64) error {
	for i, v := range r.Turns {
		u := r.Against.Turns[i]
		if v.Done == 0 || u.Done == 0 {
			return fmt.Errorf("nothing got through in %v (VIP: %t)", turn, v.Done == 0)
		}
		*p = append(*p, Pair{value(v), value(u)})
	}
	return nil
}

// connections measures new connections by 8 clients, and what they cost the switch: turn by turn.
func (m *measurement) connections(ctx context.Context, d *Data, vip, direct []string) error {
	o := traffic.Options{Targets: vip, Against: direct, Clients: 8, Duration: 4 * m.plan.round, Connect: true, Turn: turn}
	forwards := m.switchForwards()
	if forwards {
		o.Watch = m.VswitchdPID()
	}
	r, err := m.traffic(ctx, o)
	if err != nil {
		return err
	}
	if forwards {
		if err := d.SwitchCPU.addTurns(r, func(t traffic.Turn) float64 { return t.CPU / float64(t.Done) }); err != nil {
			return err
		}
	}
	return d.Connections8.addTurns(r, traffic.Turn.Rate)
}

// refusalsARound is far below what the switch may send to nkp at once (--reject-rate).
const refusalsARound = 20

// refusals measures connections that are refused, one by one, in turns.
func (m *measurement) refusals(ctx context.Context, d *Data) error {
	if m.Kind.OfKubernetes() {
		return nil
	}
	refused := func(ip string) (took float64, err error) {
		begin := time.Now()
		c, err := m.Client.DialTCP(ctx, fmt.Sprintf("%s:%d", ip, rig.ClosedPort), testbed.DialOptions{})
		took = time.Since(begin).Seconds() * 1e6
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, testbed.ErrRefused) {
			return 0, fmt.Errorf("port %d of %s: %v, want a refusal", rig.ClosedPort, ip, err)
		}
		return took, nil
	}
	for range refusalsARound {
		vip, err := refused(rig.Data().VIP)
		if err != nil {
			return err
		}
		direct, err := refused(rig.Data().Endpoints[0])
		if err != nil {
			return err
		}
		d.Refusal = append(d.Refusal, Pair{vip, direct})
	}
	return nil
}

// switchForwards reports whether ovs-vswitchd itself forwards, not the kernel.
func (m *measurement) switchForwards() bool {
	return m.Kind == rig.NKP && testbed.DefaultDatapath() == testbed.UserDatapath
}

// forgetFlows drops the flows that a switch's datapath has cached.
func (m *measurement) forgetFlows() error {
	if m.Kind != rig.NKP {
		return nil
	}
	_, err := m.Appctl("dpctl/del-flows")
	return err
}

// warm makes connections until a run of them goes through without loss: neighbours get to know each other, and the
// datapath its flows.
func (m *measurement) warm(ctx context.Context, to []string) (err error) {
	for range 10 {
		if _, err = m.traffic(ctx, traffic.Options{Targets: to, Clients: 8, Duration: 500 * time.Millisecond, Connect: true}); err == nil {
			return nil
		}
	}
	return err
}

// spread connects to all Services with pods in turns, after the datapath's cached flows were dropped.
func (m *measurement) spread(ctx context.Context) (s Spread, err error) {
	targets := rig.LiveFrontends(m.services)
	s.VIPs = len(targets)
	if err := m.warm(ctx, targets); err != nil {
		return s, err
	}
	if err := m.forgetFlows(); err != nil {
		return s, err
	}
	for _, upcalls := range []*float64{&s.Upcalls, &s.WarmUpcalls} {
		before, _, err := m.datapath()
		if err != nil {
			return s, err
		}
		r, err := m.traffic(ctx, traffic.Options{Targets: targets, Clients: 8, Duration: 2 * m.plan.round, Connect: true})
		if err != nil {
			return s, err
		}
		s.Rate = r.Rate()
		after, flows, err := m.datapath()
		if err != nil {
			return s, err
		}
		s.Megaflows, *upcalls = flows, float64(after-before)/float64(max(1, r.Done))
	}
	return s, nil
}

// datapath returns the packets that the datapath had to ask about so far, and its flows; nothing if there is no switch.
func (m *measurement) datapath() (missed, flows int, err error) {
	if m.Kind != rig.NKP {
		return 0, 0, nil
	}
	out, err := m.Appctl("dpctl/show")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		var hit, lost int
		_, _ = fmt.Sscanf(line, "lookups: hit:%d missed:%d lost:%d", &hit, &missed, &lost)
		if n, ok := strings.CutPrefix(line, "flows: "); ok {
			flows, err = strconv.Atoi(n)
		}
	}
	return missed, flows, err
}

// switchCPU returns the CPU time that ovs-vswitchd has used; 0 if there is none.
func (m *measurement) switchCPU() time.Duration {
	if m.Kind != rig.NKP {
		return 0
	}
	t, _ := rig.CPU(m.VswitchdPID())
	return t
}

// traffic runs the client program in the client's pod.
func (m *measurement) traffic(ctx context.Context, o traffic.Options) (r traffic.Result, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	out, err := m.Client.Exec(ctx, append([]string{self, trafficCommand}, o.Args()...)...)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, err
	}
	if a := r.Against; a != nil {
		r.Failed += a.Failed
	}
	if r.Failed*100 > r.Done {
		return r, fmt.Errorf("%d of %d requests to %v failed", r.Failed, r.Failed+r.Done, o.Targets[0])
	}
	return r, nil
}
