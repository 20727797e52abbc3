//go:build linux

package packets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// breakagesVar is how many breakages TestTraceOfBrokenSwitches tries, with four packets each (make test-trace: 500).
const breakagesVar = "NKP_TRACE_BREAKAGES"

// number returns a number of the environment.
func number(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// probe is a packet that is traced and sent.
type probe struct {
	from      *testbed.Host
	proto, to string
}

func (p probe) String() string { return fmt.Sprintf("%s to %s %s", p.from.Name, p.proto, p.to) }

// breaker breaks the switch at random, and puts it right again.
type breaker struct {
	*cluster
	t   *testing.T
	rng *rand.Rand
	// undo are the commands of ovs-ofctl that put it right.
	undo [][]string
}

func pick[T any](b *breaker, list ...T) T { return list[b.rng.IntN(len(list))] }

// dump returns flows or groups as ovs-ofctl takes them.
func (b *breaker) dump(args ...string) (lines []string) {
	b.t.Helper()
	out, err := b.Ofctl(append(args[:1:1], append([]string{b.Bridge}, args[1:]...)...)...)
	must(b.t, err)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "actions=") || strings.Contains(line, "group_id=") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (b *breaker) ofctl(args ...string) {
	b.t.Helper()
	_, err := b.Ofctl(args...)
	must(b.t, err)
}

var packetsField = regexp.MustCompile(`n_packets=[1-9]`)

// ownFlow returns one of nkp's flows: in three of four calls, one that has matched packets.
func (b *breaker) ownFlow() (line, match string) {
	b.t.Helper()
	all := b.dump("dump-flows", "cookie=0x6e6b700100000000/0xffffffff00000000")
	met := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !packetsField.MatchString(s) })
	if len(met) > 0 && b.rng.IntN(4) > 0 {
		all = met
	}
	line = statistics.ReplaceAllString(pick(b, all...), "")
	match, _, _ = strings.Cut(line, " actions=")
	_, match, _ = strings.Cut(match, ",") // without the cookie
	return line, strings.TrimSpace(match)
}

// tableOf returns the table of a flow that ovs-ofctl has printed.
func tableOf(line string) (table int) {
	_, rest, _ := strings.Cut(line, "table=")
	fmt.Sscan(strings.FieldsFunc(rest+",", func(r rune) bool { return r == ',' || r == ' ' })[0], &table)
	return table // 0: none is printed
}

var statistics = regexp.MustCompile(`duration=\S+ |n_packets=\d+, |n_bytes=\d+, |idle_age=\d+, `)

// breaks changes the switch in one way and returns it in words.
func (b *breaker) breaks() string {
	b.t.Helper()
	b.undo = nil
	// No flow leads back to an earlier table: Open vSwitch's ofproto/trace (3.1) follows recirculation without a limit, so that
	// a loop through conntrack would keep ovs-vswitchd's main thread for ever.
	action := func(table int) string {
		if table >= 2 {
			return pick(b, "drop", "drop", "drop", "NORMAL", "output:12")
		}
		return pick(b, "drop", "drop", "drop", "NORMAL", "resubmit(,2)", "resubmit(,30)", "output:12", "set_field:0->reg1,resubmit(,2)")
	}
	switch b.rng.IntN(7) {
	case 0, 1, 2:
		table := pick(b, 0, 1, 2, 3, 20, 30, 30, 2, 1, 0, 10, 11, 12, 13, 14, 15, 16)
		match := pick(b, "ip", "ip", "tcp", "udp", "ip,nw_dst=40.0.0.1", "ip,nw_dst=10.0.0.11", "ip,nw_dst=10.0.1.0/24", "ip,nw_src=10.0.0.12", "in_port=1", "in_port=12,ip",
			"reg1=1/1", "tcp,tp_dst=8080", "ipv6", "ip,nw_dst=172.16.0.2", "ct_state=+new+trk,ip", "ct_state=+est+trk,ip", "ip,nw_dst=203.0.113.1", "tcp,tp_src=8080")
		flow := fmt.Sprintf("table=%d,priority=%d,%s", table, pick(b, 1, 105, 150, 205, 255, 305, 405, 65000, 65000), match)
		act := action(table)
		if act != "drop" && b.rng.IntN(2) == 0 {
			act = "drop"
		}
		b.undo = [][]string{{"--strict", "del-flows", b.Bridge, flow}}
		b.ofctl("add-flow", b.Bridge, "cookie=0x77,"+flow+",actions="+act)
		return "foreign " + flow + " actions=" + act
	case 3, 4:
		line, match := b.ownFlow()
		b.undo = [][]string{{"add-flow", b.Bridge, line}}
		act := action(tableOf(line))
		b.ofctl("--strict", "mod-flows", b.Bridge, match+",actions="+act)
		return "changed " + line + " to " + act
	case 5:
		line, match := b.ownFlow()
		b.undo = [][]string{{"add-flow", b.Bridge, line}}
		b.ofctl("--strict", "del-flows", b.Bridge, match)
		return "deleted " + line
	}
	line := pick(b, b.dump("dump-groups")...)
	b.undo = [][]string{{"mod-group", b.Bridge, line}}
	head, buckets, _ := strings.Cut(line, ",bucket=")
	list := strings.Split(buckets, ",bucket=")
	i := b.rng.IntN(len(list))
	if b.rng.IntN(2) == 0 {
		list[i], _, _ = strings.Cut(list[i], "actions=")
		list[i] += "actions="
	} else {
		list = slices.Delete(list, i, i+1)
	}
	now := head
	for _, s := range list {
		now += ",bucket=" + s
	}
	b.ofctl("mod-group", b.Bridge, now)
	return "group now " + now
}

func (b *breaker) mends() {
	b.t.Helper()
	for _, args := range b.undo {
		b.ofctl(args...)
	}
}

// objects returns all flows and groups, to see whether they were changed.
func (b *breaker) objects() string {
	b.t.Helper()
	flows := b.dump("dump-flows", "--no-stats")
	flows = slices.DeleteFunc(flows, func(s string) bool { return strings.Contains(s, "cookie=0x6e6b7002") }) // pins
	slices.Sort(flows)
	groups := b.dump("dump-groups")
	slices.Sort(groups)
	return strings.Join(append(flows, groups...), "\n")
}

// TestTraceOfBrokenSwitches breaks the switch in random ways, and compares what trace --live says of packets with what becomes of
// them: nothing that it says is delivered is lost, and nothing that it says is dropped, or refused, arrives.
func TestTraceOfBrokenSwitches(t *testing.T) {
	nightlyOr(t, breakagesVar, "it breaks the switch at random")
	seed, breakages := nightly.Seed(t), number(t, breakagesVar, 51)
	const most = 60 // of one cluster
	said := map[string]int{}
	for first := 0; first < breakages; first += most {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			traceBroken(t, rand.New(rand.NewPCG(seed, uint64(first))), min(most, breakages-first), said)
		})
	}
	pairs := 0
	for _, n := range said {
		pairs += n
	}
	t.Logf("%d pairs: %v", pairs, said)
	if sure := said["deliver"] + said["drop"] + said["reject"] + said["untouched"]; 2*sure < pairs || pairs < breakages {
		t.Errorf("trace is sure of %d of %d packets: %v", sure, pairs, said)
	}
}

// traceBroken tries some breakages of one switch, and counts the verdicts of trace in said.
func traceBroken(t *testing.T, rng *rand.Rand, rounds int, said map[string]int) {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC)
	c.put(traceServices(c)...)
	c.runWith("--audit-period", "1h")
	c.settle()
	c.servePods(t)
	b := &breaker{cluster: c, t: t, rng: rng}
	client, twin := c.pods[1].Host, c.pods[0].Host
	probes := []probe{
		{client, "tcp", "40.0.0.1:80"}, {client, "tcp", "40.0.0.1:80"}, {twin, "tcp", "40.0.0.1:80"}, {c.Node, "tcp", "40.0.0.1:80"}, {c.External, "tcp", "172.16.0.2:30080"},
		{client, "tcp", "172.16.0.2:30080"}, {client, "udp", "40.0.0.2:80"}, {c.External, "udp", "172.16.0.2:30081"}, {client, "tcp", "[fd00:40::1]:80"},
		{c.External, "tcp", "[fd00:ac::2]:30082"}, {client, "tcp", "40.0.0.3:80"}, {client, "tcp", "40.0.0.4:80"}, {twin, "tcp", "40.0.0.4:80"}, {client, "tcp", "40.0.0.5:80"},
		{c.External, "tcp", "20.0.0.2:80"}, {client, "tcp", "20.0.0.3:80"}, {c.External, "tcp", "20.0.0.3:80"}, {c.External, "tcp", "20.0.0.5:80"}, {client, "tcp", "40.0.0.99:80"},
	}
	const packets = 4 // of each breakage
	for i := 0; i < rounds; i++ {
		what := b.breaks()
		c.uncached(t)
		before := b.objects()
		var errs []string
		var verdicts []string
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, n := range b.rng.Perm(len(probes))[:packets] {
			all.Go(func() {
				verdict, why := c.compare(probes[n])
				mu.Lock()
				defer mu.Unlock()
				verdicts = append(verdicts, verdict)
				if why != "" {
					errs = append(errs, fmt.Sprintf("%s: %s", probes[n], why))
				}
			})
		}
		all.Wait()
		if b.objects() != before { // the agent has repaired something meanwhile
			b.mends()
			i--
			continue
		}
		for _, v := range verdicts {
			said[v]++
		}
		if len(errs) > 0 {
			t.Errorf("breakage %d: %s\n%s", i, what, strings.Join(errs, "\n"))
		}
		b.mends()
		c.flush()
	}
}

// compare traces a packet and sends it. why says how trace was wrong; "": it was not.
func (c *cluster) compare(p probe) (verdict, why string) {
	to := netip.MustParseAddrPort(p.to)
	r, status := c.trace(c.t, p.proto, p.from.IP(to.Addr()).String(), p.to, "--live")
	if r.Live == nil {
		return "", fmt.Sprintf("no comparison, status %d", status)
	}
	wrong := func(format string, args ...any) string {
		return fmt.Sprintf(format, args...) + fmt.Sprintf(": trace says %s, agrees %t\n  %s\n  %s", r.Live.Verdict, r.Live.Agrees,
			strings.Join(r.Live.Differences, "\n  "), strings.Join(r.Live.Steps, "\n  "))
	}
	if r.Live.Agrees != (status == 0) || r.Live.Agrees && r.Live.Verdict != r.Verdict || !r.Live.Agrees && len(r.Live.Differences) == 0 {
		return r.Live.Verdict, wrong("the model says %s, status %d", r.Verdict, status)
	}
	switch r.Live.Verdict {
	case "deliver":
		a, err := p.from.Ask(c.ctx, p.proto, p.to)
		if err != nil {
			return r.Live.Verdict, wrong("false deliver: %v", err)
		}
		pods := append(slices.Clone(c.pods), c.remotes...)
		if i := slices.IndexFunc(pods, func(p *testbed.Pod) bool { return p.Name == a.Pod }); i < 0 || !slices.Contains(r.Endpoints, hostPort(pods[i].IP(to.Addr()), 8080)) {
			return r.Live.Verdict, wrong("answered by %s, which is none of %v", a.Pod, r.Endpoints)
		}
	case "drop":
		// The breakage may keep any control from being answered. On the userspace datapath the thread that passes packets on also
		// answers over OpenFlow, in turns.
		sent := c.sends(c.t, p.from, p.proto, p.to)
		defer sent.close()
		for range 4 {
			_, err := c.Ofctl("dump-ports", c.Bridge)
			must(c.t, err)
		}
		if yes, err := sent.answered(); yes {
			return r.Live.Verdict, wrong("false drop: %v", err)
		}
	case "reject":
		if a, err := p.from.Ask(c.ctx, p.proto, p.to); !errors.Is(err, testbed.ErrRefused) {
			return r.Live.Verdict, wrong("not refused: %v, %v", a, err)
		}
	}
	return r.Live.Verdict, ""
}
