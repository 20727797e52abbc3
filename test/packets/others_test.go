//go:build linux

package packets

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/inforce"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// policies are bridges whose other flows decide what reaches a pod. On each, the first pod must not reach the
// second one, and reaches the third one.
var policies = []struct {
	name  string
	bed   testbed.Options
	flows func(first, second, third string) []string // of one family
}{
	{"a drop in a table of its own", testbed.Options{Standalone: true}, func(first, second, _ string) []string {
		return []string{"table=0,priority=50,FAMILY,actions=resubmit(,50)",
			"table=50,priority=10,FAMILY,SRC=" + first + ",DST=" + second + ",actions=drop",
			"table=50,priority=0,actions=NORMAL"}
	}},
	{"denied by default", testbed.Options{}, func(first, _, third string) []string {
		return []string{"table=0,priority=0,actions=drop", "table=0,priority=10,arp,actions=NORMAL", "table=0,priority=10,icmp6,actions=NORMAL",
			"table=0,priority=20,FAMILY,SRC=" + first + ",DST=" + third + ",actions=NORMAL",
			"table=0,priority=20,FAMILY,SRC=" + third + ",DST=" + first + ",actions=NORMAL"}
	}},
	{"denied by a bridge that forwards nothing by itself", testbed.Options{}, func(first, _, third string) []string {
		return []string{"table=0,priority=10,arp,actions=NORMAL", "table=0,priority=10,icmp6,actions=NORMAL",
			"table=0,priority=20,FAMILY,SRC=" + first + ",DST=" + third + ",actions=NORMAL",
			"table=0,priority=20,FAMILY,SRC=" + third + ",DST=" + first + ",actions=NORMAL"}
	}},
}

// others are the flows of a policy for both families.
func (c *cluster) others(flows func(first, second, third string) []string) (list []string) {
	for _, v6 := range []bool{false, true} {
		words := strings.NewReplacer("FAMILY", "ip", "SRC", "nw_src", "DST", "nw_dst")
		if v6 {
			words = strings.NewReplacer("FAMILY", "ipv6", "SRC", "ipv6_src", "DST", "ipv6_dst")
		}
		ip := func(p *testbed.Pod) string {
			if v6 {
				return p.IP6.String()
			}
			return p.IP4.String()
		}
		for _, f := range flows(ip(c.pods[0]), ip(c.pods[1]), ip(c.pods[2])) {
			list = append(list, "cookie=0x77,"+words.Replace(f))
		}
	}
	return list
}

func (c *cluster) addFlows(t *testing.T, flows ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "flows")
	must(t, os.WriteFile(file, []byte(strings.Join(flows, "\n")+"\n"), 0o600))
	_, err := c.Ofctl("add-flows", c.Bridge, file)
	must(t, err)
}

// obeys checks that direct traffic of the first pod gets where the policies let it, and nowhere else.
func (c *cluster) obeys(t *testing.T, when string) {
	t.Helper()
	c.uncached(t)
	first, second, third := c.pods[0], c.pods[1], c.pods[2]
	for _, proto := range []string{"tcp", "udp"} {
		for _, to := range []struct{ denied, allowed string }{
			{hostPort(second.IP4, 8080), hostPort(third.IP4, 8080)}, {hostPort(second.IP6, 8080), hostPort(third.IP6, 8080)},
		} {
			c.unanswered(t, first.Host, proto, to.denied, func() {
				t.Helper()
				c.ask(t, first.Host, proto, to.allowed, third.Name)
			})
		}
	}
	if t.Failed() {
		t.Fatalf("%s: the policy does not hold", when)
	}
}

// policyServices are a Service for each of the second and third pod, in both families, of TCP; and of UDP, with addresses 10 higher.
func (c *cluster) policyServices() (list []any) {
	for i, pod := range c.pods[1:] {
		for j, ip := range []netip.Addr{pod.IP4, pod.IP6} {
			for k, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
				vip := fmt.Sprintf([]string{"40.0.0.%d", "fd00:40::%d"}[j], 2+i+10*k)
				s := service(fmt.Sprintf("to-%d-%d-%d", i, j, k), vip, protocol(proto))
				list = append(list, s, slice(s, 8080, at(ip)))
			}
		}
	}
	return list
}

// obeysThroughServices is obeys for connections through Services.
func (c *cluster) obeysThroughServices(t *testing.T, when string) {
	t.Helper()
	first, third := c.pods[0], c.pods[2]
	for _, vip := range []string{"40.0.0.%d:80", "[fd00:40::%d]:80"} {
		for i, proto := range []string{"tcp", "udp"} {
			c.unanswered(t, first.Host, proto, fmt.Sprintf(vip, 2+10*i), func() {
				t.Helper()
				c.ask(t, first.Host, proto, fmt.Sprintf(vip, 3+10*i), third.Name)
			})
		}
	}
	if t.Failed() {
		t.Fatalf("%s: the policy does not hold through Services", when)
	}
}

// Flows of others in table 0 decide where direct traffic goes, as they would without nkp: whether they come
// before nkp or while it runs, after its restart, without it, and after its cleanup.
func TestOthersDecide(t *testing.T) {
	for _, policy := range policies {
		for _, order := range []string{"before nkp", "while nkp runs"} {
			t.Run(policy.name+", "+order, func(t *testing.T) {
				c := newCluster(t, policy.bed)
				c.put(c.policyServices()...)
				c.servePods(t)
				flows := c.others(policy.flows)
				if order == "before nkp" {
					c.addFlows(t, flows...)
					c.obeys(t, "without nkp")
				}
				c.run()
				c.settle()
				if order != "before nkp" {
					c.ask(t, c.pods[0].Host, "tcp", hostPort(c.pods[1].IP4, 8080), c.pods[1].Name) // there is no policy yet
					c.addFlows(t, flows...)
					c.settle()
				}
				c.obeys(t, "with nkp")
				c.obeysThroughServices(t, "with nkp")
				c.statusMatches(true, `(?m)^others +flows of others in table 0 decide`)
				for vip, verdict := range map[string]string{"40.0.0.2:80": "drop", "40.0.0.3:80": "deliver"} {
					if r, _ := c.trace(t, "tcp", c.pods[0].IP4.String(), vip, "--live"); r.Live == nil || r.Live.Verdict != verdict {
						t.Errorf("trace --live to %s: %+v; want %s", vip, r.Live, verdict)
					}
				}
				must(t, c.agent.Stop(syscall.SIGTERM))
				c.obeys(t, "while nkp is away")
				c.obeysThroughServices(t, "while nkp is away")
				c.run()
				c.settle()
				c.obeys(t, "after a restart")
				c.obeysThroughServices(t, "after a restart")
				must(t, c.agent.Stop(syscall.SIGTERM))
				c.cleanup(t)
				c.obeys(t, "after cleanup")
			})
		}
	}
}

// NodePorts from outside, of TCP and UDP, go by the flows of others after translation: with the endpoint as destination and, of a
// Service of policy Cluster, the node as source, of policy Local the client. The answer goes by them with the node's address and the
// NodePort as source.
func TestOthersDecideOnNodePorts(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true}, "--service-cidr", serviceCIDRs)
	type port struct {
		proto, to string // from outside
		pod       *testbed.Pod
	}
	ports := map[string][]port{} // by name of a Service's policy and endpoint
	nodePort := uint16(30080)
	for _, policy := range []v1.ServiceExternalTrafficPolicy{v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal} {
		for i, pod := range []*testbed.Pod{c.pods[1], c.pods[2]} {
			for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
				for j, node := range []netip.Addr{testbed.NodeIP4, testbed.NodeIP6} {
					nodePort++
					n := int(nodePort - 30080)
					s := service(nth("web", n), fmt.Sprintf([]string{"40.0.0.%d", "fd00:40::%d"}[j], n), exposed(int32(nodePort)), protocol(proto))
					s.Spec.ExternalTrafficPolicy = policy
					c.put(s, slice(s, 8080, at([]netip.Addr{pod.IP4, pod.IP6}[j])))
					which := string(policy) + []string{" second", " third"}[i]
					ports[which] = append(ports[which], port{strings.ToLower(string(proto)), hostPort(node, nodePort), pod})
				}
			}
		}
	}
	c.addFlows(t, c.others(func(string, string, string) []string {
		return []string{"table=0,priority=50,FAMILY,actions=resubmit(,50)", "table=50,priority=0,actions=NORMAL"}
	})...)
	c.begin()

	external, node := []string{testbed.ExternalIP4.String(), testbed.ExternalIP6.String()}, []string{testbed.NodeIP4.String(), testbed.NodeIP6.String()}
	second, third := []string{c.pods[1].IP4.String(), c.pods[1].IP6.String()}, []string{c.pods[2].IP4.String(), c.pods[2].IP6.String()}
	drop := func(src, dst []string) (list []string) {
		for i, words := range []string{"ip,nw_src=%s,nw_dst=%s", "ipv6,ipv6_src=%s,ipv6_dst=%s"} {
			list = append(list, fmt.Sprintf("cookie=0x78,table=50,priority=10,"+words+",actions=drop", src[i], dst[i]))
		}
		return list
	}
	all := []string{"Cluster second", "Cluster third", "Local second", "Local third"}
	for _, tc := range []struct {
		name   string
		flows  []string
		denied []string
	}{
		{"none", nil, nil},
		{"from the node to one pod", drop(node, second), []string{"Cluster second"}},
		{"from the client to one pod", drop(external, third), []string{"Local third"}},
		{"the answers", drop(node, external), all},
		{"direct answers, of which there are none", drop(third, external), nil},
	} {
		c.addFlows(t, tc.flows...)
		c.uncached(t)
		for _, which := range all {
			for _, p := range ports[which] {
				if !slices.Contains(tc.denied, which) {
					c.ask(t, c.External, p.proto, p.to, p.pod.Name)
					continue
				}
				c.unanswered(t, c.External, p.proto, p.to, func() {
					t.Helper()
					c.ask(t, c.External, "tcp", hostPort(c.pods[0].IP4, 8080), c.pods[0].Name) // directly
				})
			}
		}
		if t.Failed() {
			t.Fatalf("denied: %s", tc.name)
		}
		_, err := c.Ofctl("del-flows", c.Bridge, "cookie=0x78/-1")
		must(t, err)
	}
}

// The node is in a VLAN, and others decide: what comes with its tag to an endpoint on the node itself arrives, and what the node
// routes for others.
func TestOthersDecideInTheNodesVLAN(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	c.trunkUplink()
	_, err := c.Vsctl("set", "Port", c.Bridge, "tag=100")
	must(t, err)
	c.addFlows(t, "cookie=0x77,table=0,priority=50,ip,actions=resubmit(,50)", "cookie=0x77,table=0,priority=50,ipv6,actions=resubmit(,50)",
		"cookie=0x77,table=50,priority=0,actions=NORMAL", "cookie=0x77,table=0,priority=0,actions=NORMAL")
	_, err = c.Node.ServeTCP(8081)
	must(t, err)
	end := c.remotes[0]
	w := reachEveryWay(end.IP4, end.IP6)
	own := service("own", "40.0.0.99", exposed(30099))
	six := service("six", "fd00:40::99", exposed(30098))
	c.begin(append(w.objects, own, slice(own, 8081, at(testbed.NodeIP4)), six, slice(six, 8081, at(testbed.NodeIP6)))...)
	c.statusMatches(true, `(?m)^others +flows of others in table 0 decide`)
	c.answered(t, c.Node, w.own, end.Name)
	c.answered(t, c.External, w.outside, end.Name)
	c.answered(t, c.External, []string{"tcp " + hostPort(testbed.NodeIP4, 30099), "tcp " + hostPort(testbed.NodeIP6, 30098)}, c.Node.Name)
	c.answered(t, c.Node, []string{"tcp 40.0.0.99:80", "tcp [fd00:40::99]:80"}, c.Node.Name)
}

// Where others decide, what nkp routes for the node by another next hop than the default route's goes on to their flows as the node's own
// packets do: nkp does not forward by itself on a bridge that learns no MACs, and past a policy.
func TestOthersSeeWhatIsRouted(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	hostRoutes(c)
	denied, allowed := c.remotes[0], c.remotes[1]
	c.addFlows(t,
		"cookie=0x77,table=0,priority=0,actions=drop", "cookie=0x77,table=0,priority=10,arp,actions=ALL", "cookie=0x77,table=0,priority=10,icmp6,actions=ALL",
		"cookie=0x77,table=0,priority=10,in_port=LOCAL,actions=output:1", "cookie=0x77,table=0,priority=10,in_port=1,dl_dst="+testbed.NodeMAC+",actions=LOCAL",
		"cookie=0x77,table=0,priority=20,in_port=LOCAL,ip,nw_dst="+denied.IP4.String()+",actions=drop",
		"cookie=0x77,table=0,priority=20,in_port=LOCAL,ipv6,ipv6_dst="+denied.IP6.String()+",actions=drop")
	no, yes := reachEveryWay(denied.IP4, denied.IP6), reachEveryWay(allowed.IP4, allowed.IP6)
	c.begin(yes.objects...)
	c.answered(t, c.Remote, yes.outside, allowed.Name)
	c.answered(t, c.Node, yes.own, allowed.Name)
	c.remove(yes.objects...)
	c.put(no.objects...)
	c.settle()
	for _, to := range no.outside {
		proto, addr, _ := strings.Cut(to, " ")
		c.unanswered(t, c.Remote, proto, addr, func() { t.Helper(); c.ask(t, c.Node, "tcp", hostPort(allowed.IP4, 8080), allowed.Name) })
	}
}

// NKP_OTHERS_PACKETS is how many packets TestOthersDecideAtRandom compares.
const othersPacketsVar = "NKP_OTHERS_PACKETS"

// Whatever flows others have, direct packets leave by the ports by which they leave without nkp: as
// ofproto/trace follows them.
func TestOthersDecideAtRandom(t *testing.T) {
	seed := nightly.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 43))
	pipelines, packets := nightly.Count(4, 100), number(t, othersPacketsVar, nightly.Count(200, 10_000))
	c := newCluster(t, testbed.Options{})
	web := service("web", "40.0.0.1", exposed(30080))
	c.put(web, slice(web, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4)))
	for mac, port := range map[string]string{testbed.GatewayMAC: testbed.UplinkName, testbed.NodeMAC: c.Bridge, "02:00:00:00:00:12": "pod-12"} {
		_, err := c.Appctl("fdb/add", c.Bridge, port, "0", mac) // or it depends on the packets that happen to be sent
		must(t, err)
	}
	g := generator{cluster: c, rng: rng}
	type pipeline struct {
		flows   []string
		packets []string
		without []string // where each goes
	}
	list := make([]pipeline, pipelines)
	gone := func(f string) {
		t.Helper()
		_, err := c.Ofctl("del-flows", c.Bridge, f)
		must(t, err)
	}
	left := 0
	for i := range list {
		p := &list[i]
		p.flows = g.flows()
		c.addFlows(t, p.flows...)
		for range packets / pipelines {
			packet := g.packet()
			p.packets, p.without = append(p.packets, packet), append(p.without, c.goes(t, packet))
			if p.without[len(p.without)-1] != "" {
				left++
			}
		}
		gone("cookie=0x77/-1")
	}
	if left == 0 || left == packets {
		t.Fatalf("%d of %d packets leave the switch: the generator tests nothing", left, packets)
	}
	c.servePods(t)
	c.addFlows(t, "cookie=0x78,table=0,priority=7,dl_type=0x1234,actions=drop") // others are there when nkp starts
	c.run()
	c.settle()
	for i := range list {
		p := &list[i]
		c.addFlows(t, p.flows...)
		for j, packet := range p.packets {
			if now := c.goes(t, packet); now != p.without[j] {
				t.Errorf("%s goes to %q with nkp, to %q without it, with\n%s", packet, now, p.without[j], strings.Join(p.flows, "\n"))
			}
			if t.Failed() {
				out, _ := c.Trace(c.Bridge, packet)
				t.Fatal(out)
			}
		}
		gone("cookie=0x77/-1")
	}
}

// goes returns what leaves the switch when a packet comes in, and by which ports: datapath actions but those
// of conntrack.
func (c *cluster) goes(t *testing.T, packet string) string {
	t.Helper()
	out, err := c.Trace(c.Bridge, packet)
	must(t, err)
	var list []string
	for line := range strings.Lines(out) {
		actions, ok := strings.CutPrefix(strings.TrimSpace(line), "Datapath actions: ")
		if !ok || actions == "drop" {
			continue
		}
		depth, from := 0, 0
		for i, r := range actions + "," {
			switch {
			case r == '(':
				depth++
			case r == ')':
				depth--
			case r == ',' && depth == 0:
				word := actions[from:i]
				if from = i + 1; !strings.HasPrefix(word, "ct(") && !strings.HasPrefix(word, "recirc(") && word != "ct_clear" {
					list = append(list, word)
				}
			}
		}
	}
	if !slices.ContainsFunc(list, func(s string) bool { _, err := strconv.Atoi(s); return err == nil }) {
		return "" // it changes headers and is dropped
	}
	return strings.Join(list, ",")
}

// generator draws flows and packets.
type generator struct {
	*cluster
	rng *rand.Rand
}

func (g *generator) one(list ...string) string { return list[g.rng.IntN(len(list))] }

// flows draws a pipeline of another owner in table 0 and tables from 50 on. Flows lead to later tables, and
// from tables 60 on back to table 0 with a register set, which such pipelines do to look at a packet twice.
// These are not reached from flows before nkp's, whose actions would be done twice (docs/cni.md).
func (g *generator) flows() (list []string) {
	used := map[int]bool{}
	for range 6 + g.rng.IntN(10) {
		priority := 2 + g.rng.IntN(96)
		early := g.rng.IntN(4) == 0
		if early {
			priority = 411 + g.rng.IntN(60000)
		}
		if used[priority] {
			continue
		}
		used[priority] = true
		next := "resubmit(,60)"
		if early {
			next = "resubmit(,50)"
		}
		list = append(list, fmt.Sprintf("table=0,priority=%d%s,actions=%s", priority, g.match(0), g.actions(next)))
	}
	if g.rng.IntN(2) == 0 {
		list = append(list, "table=0,priority=0,actions="+g.one("drop", "NORMAL", "resubmit(,61)"))
	}
	for _, table := range []int{50, 51, 60, 61} {
		for i := range 1 + g.rng.IntN(4) {
			next := fmt.Sprintf("resubmit(,%d)", table+1)
			switch {
			case table == 51:
				next = "NORMAL"
			case table == 61:
				next = "load:1->NXM_NX_REG0[],resubmit(,0)"
			}
			list = append(list, fmt.Sprintf("table=%d,priority=%d%s,actions=%s", table, 10+i, g.match(table), g.actions(next)))
		}
		if g.rng.IntN(2) == 0 {
			list = append(list, fmt.Sprintf("table=%d,priority=0,actions=%s", table, g.one("drop", "NORMAL", "FLOOD")))
		}
	}
	for i := range list {
		list[i] = "cookie=0x77," + list[i]
	}
	return list
}

func (g *generator) match(table int) string {
	m := g.one("", ",ip", ",ipv6", ",tcp", ",udp6", ",tcp,tp_dst=8080", ",ip,nw_src=10.0.0.0/24", ",ip,nw_dst=10.0.1.0/24", ",ip,nw_dst="+g.pods[1].IP4.String(),
		",ipv6,ipv6_src="+g.pods[0].IP6.String(), ",ipv6,ipv6_dst=fd00:a::/64", ",arp", ",in_port=11", ",in_port=LOCAL", ",icmp6", ",dl_dst="+testbed.GatewayMAC,
		",ip,ct_state=-trk", ",ip,nw_dst=172.16.0.2", ",ip,in_port=1", ",metadata=0", ",ip,nw_frag=no")
	switch {
	case table == 61:
		m = ",reg0=0" + m // back to table 0 once
	case g.rng.IntN(3) == 0:
		m += g.one(",reg0=0", ",reg0=1", ",reg1=0", ",reg3=0/0xff", ",reg5=0")
	}
	return m
}

func (g *generator) actions(next string) string {
	switch g.rng.IntN(9) {
	case 0:
		return "drop"
	case 1:
		return "NORMAL"
	case 2:
		return g.one("output:11", "output:12", "output:1", "LOCAL", "IN_PORT", "FLOOD")
	case 3:
		return "load:7->NXM_NX_REG5[]," + next
	case 4:
		return "mod_dl_dst:02:00:00:00:00:77," + next
	}
	return next
}

// packet draws a packet that is for no Service.
func (g *generator) packet() string {
	port := g.one("11", "12", "13", "1", "LOCAL")
	dst := g.one(testbed.GatewayMAC, testbed.NodeMAC, "02:00:00:00:00:12", "ff:ff:ff:ff:ff:ff")
	ip4 := []string{g.pods[0].IP4.String(), g.pods[1].IP4.String(), g.remotes[0].IP4.String(), "172.16.0.2", "192.0.2.1", "224.0.0.5"}
	ip6 := []string{g.pods[0].IP6.String(), g.pods[1].IP6.String(), g.remotes[0].IP6.String(), testbed.NodeIP6.String(), "2001:db8::1", "ff02::5"}
	at := fmt.Sprintf("in_port=%s,dl_src=02:00:00:00:00:%d,dl_dst=%s", port, 11+g.rng.IntN(3), dst)
	ports := fmt.Sprintf("%d,TP_dst=%s", 1024+g.rng.IntN(60000), g.one("8080", "53", "22"))
	switch g.rng.IntN(8) {
	case 0:
		return at + ",arp,arp_op=1,arp_spa=10.0.0.11,arp_tpa=10.0.0.12"
	case 1:
		return at + ",icmp6,ipv6_src=" + g.one(ip6[:5]...) + ",ipv6_dst=" + g.one(ip6...) + ",nw_ttl=255,icmpv6_type=" + g.one("135", "136", "128")
	case 2, 3:
		proto := g.one("tcp", "udp")
		return fmt.Sprintf("%s,%s6,ipv6_src=%s,ipv6_dst=%s,nw_ttl=64,%s_src=%s", at, proto, g.one(ip6[:5]...), g.one(ip6...), proto, strings.ReplaceAll(ports, "TP", proto))
	case 4:
		return at + ",icmp,nw_src=" + g.one(ip4[:5]...) + ",nw_dst=" + g.one(ip4...) + ",nw_ttl=64,icmp_type=8"
	case 5:
		return at + ",dl_type=0x88cc"
	}
	proto := g.one("tcp", "udp")
	return fmt.Sprintf("%s,%s,nw_src=%s,nw_dst=%s,nw_ttl=64,%s_src=%s", at, proto, g.one(ip4[:5]...), g.one(ip4...), proto, strings.ReplaceAll(ports, "TP", proto))
}

// A bridge that denies by default, as docs/operate/policies.md makes it and undoes it: nkp's NORMAL flow does
// not come back for a denial that is only deleted, and the flow that was there before is restored.
func TestDenyingBridge(t *testing.T) {
	for _, standalone := range []bool{false, true} {
		t.Run(fmt.Sprintf("standalone %t", standalone), func(t *testing.T) {
			c := newCluster(t, testbed.Options{Standalone: standalone})
			c.begin(c.policyServices()...)
			first, second := c.pods[0], c.pods[1]
			passes := func(when string) {
				t.Helper()
				c.uncached(t)
				c.ask(t, first.Host, "tcp", hostPort(second.IP4, 8080), second.Name)
				c.ask(t, first.Host, "tcp", "40.0.0.2:80", second.Name)
				if t.Failed() {
					t.Fatal(when)
				}
			}
			drops := func(when string) {
				t.Helper()
				out, err := c.Trace(c.Bridge, fmt.Sprintf("in_port=%d,arp", first.OFPort))
				must(t, err)
				if !strings.Contains(out, "Datapath actions: drop") {
					t.Fatalf("%s: a packet is forwarded:\n%s", when, out)
				}
			}
			passes("nothing denies")

			dump, err := c.Ofctl("dump-flows", "--no-stats", c.Bridge, "table=0")
			must(t, err)
			before := ""
			for l := range strings.Lines(dump) {
				if strings.Contains(l, " priority=0 actions=") {
					before += l
				}
			}
			if (before != "") != standalone {
				t.Fatalf("flow of priority 0 before: %q", before)
			}

			c.addFlows(t, "priority=0,actions=drop")
			c.statusMatches(true, `(?m)^others +flows of others in table 0 decide`)
			drops("denied")
			_, err = c.Ofctl("--strict", "del-flows", c.Bridge, "priority=0")
			must(t, err)
			late := service("late", "40.0.0.99") // its flows come behind what the switch reports of the deletion
			c.put(late, slice(late, 8080, at(second.IP4)))
			c.eventually("late in force", func() error { return inforce.Manifests(c.ctx, c.socket(), c.manifest) })
			drops("the denial is deleted")

			c.addFlows(t, "priority=0,actions=drop")
			file := filepath.Join(t.TempDir(), "before.txt")
			must(t, os.WriteFile(file, []byte(cmp.Or(before, "priority=0,actions=NORMAL\n")), 0o600))
			_, err = c.Ofctl("--bundle", "add-flows", c.Bridge, file)
			must(t, err)
			passes("undone")
			c.settle() // nkp goes on as if others decided, which is no difference
			must(t, c.agent.Stop(syscall.SIGTERM))
			c.run()
			c.settle()
			passes("undone, after a restart")
		})
	}
}
