//go:build linux

package netlink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// isolated puts the test into a network namespace of its own. Programs that it starts are there, too.
func isolated(t *testing.T) *Conn {
	t.Helper()
	testbed.Isolate(t)
	c, err := Open()
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func program(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command("nft", argv...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// model has Services of all kinds of frontends and policies. nft 1.0.6 ends with a failed assertion when it reads a map statement with an
// IPv6 address and port (netlink_linearize.c), so that session affinity is IPv4's alone unless v6Affinity is set.
func model(v6Affinity bool) *k8s.Model {
	m := &k8s.Model{
		Node:         k8s.Node{IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")}, Local: []netip.Addr{netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd00:ac::2")}},
		Detector:     k8s.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00:10::/33")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("40.0.0.0/24"), netip.MustParsePrefix("fd00:40::/112")},
		Ports:        map[k8s.PortName]*k8s.ServicePort{},
	}
	for i, proto := range []k8s.Protocol{"TCP", "UDP", "SCTP"} {
		for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
			at := func(v4, v6 string) netip.Addr {
				if f == k8s.IPv6 {
					return netip.MustParseAddr(fmt.Sprintf("fd00:%s%d", v6, i+1))
				}
				return netip.MustParseAddr(fmt.Sprintf("%s.0.0.%d", v4, i+1))
			}
			ranges := []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16"), netip.MustParsePrefix("172.16.1.0/24"), netip.MustParsePrefix("1.2.3.4/32")}
			if f == k8s.IPv6 {
				ranges = []netip.Prefix{netip.MustParsePrefix("fd00:c0::/32"), netip.MustParsePrefix("fd00:c1::/70")}
			}
			sp := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: fmt.Sprint("web", i)}, Protocol: proto, Family: f}}
			for k := range 3 + 10*i {
				sp.ClusterEndpoints = append(sp.ClusterEndpoints, k8s.Endpoint{Addr: netip.AddrPortFrom(at("10", fmt.Sprintf("10::%x:", k)), uint16(8080+k)), Local: k == 0})
			}
			sp.LocalEndpoints = sp.ClusterEndpoints[:1]
			if f == k8s.IPv4 || v6Affinity {
				sp.AffinitySeconds = 100 * i
			}
			policy := []k8s.Policy{k8s.Cluster, k8s.Local}[i%2]
			sp.Frontends = []k8s.Frontend{
				{Type: k8s.ClusterIP, Address: at("40", "40::"), Port: 80, Policy: policy},
				{Type: k8s.LoadBalancer, Address: at("20", "20::"), Port: 80, Policy: policy, SourceRanges: ranges},
				{Type: k8s.NodePort, Port: 30080, Policy: policy},
			}
			for k := range 10 * i { // that share their slots
				sp.Frontends = append(sp.Frontends, k8s.Frontend{Type: k8s.ExternalIP, Address: at(fmt.Sprint(50+k), fmt.Sprintf("50:%x::", k)), Port: 80, Policy: policy})
			}
			m.Ports[sp.Name] = sp
			none := *sp
			none.Name.Name = fmt.Sprint("none", i)
			none.ClusterEndpoints, none.LocalEndpoints = nil, nil
			none.Frontends = []k8s.Frontend{{Type: k8s.ClusterIP, Address: at("40", "40::1:"), Port: 81, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}
			m.Ports[none.Name] = &none
		}
	}
	return m
}

var settings = map[string]func(c *rules.Config, m *k8s.Model){
	"everything": func(*rules.Config, *k8s.Model) {},
	"traffic":    func(c *rules.Config, _ *k8s.Model) { c.CountTraffic = true },
	"pings":      func(c *rules.Config, _ *k8s.Model) { c.AnswerPing = true },
	"own": func(c *rules.Config, _ *k8s.Model) {
		c.Scope, c.MasqueradeMin, c.MasqueradeMax = serving.Own, 32768, 65535
	},
	"host": func(c *rules.Config, m *k8s.Model) {
		c.Scope, c.PodDevice, c.LocalhostNodePorts = serving.Host, "br-int", false
		m.Detector = k8s.Detector{InterfacePrefix: "veth"}
	},
	"all masqueraded": func(c *rules.Config, m *k8s.Model) { c.MasqueradeAll, c.MasqueradeBit, c.KeepInvalid = true, 31, true },
}

// sorted returns the lines in an order of their own: elements are listed in the order of a hash, chains in that of their creation.
func sorted(list string) string {
	lines := strings.Split(strings.NewReplacer(",", "", " }", "", "elements = { ", "", "\t", "", " ", "").Replace(list), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// What is installed by netlink is what nft -f makes of the text.
func TestSameAsText(t *testing.T) {
	for name, set := range settings {
		t.Run(name, func(t *testing.T) {
			conn := isolated(t)
			c, m := rules.Config{Config: serving.DefaultConfig()}, model(false)
			set(&c, m)
			file := filepath.Join(t.TempDir(), "plan.nft")
			must(t, os.WriteFile(file, []byte(rules.Plan(m, c)), 0o600))
			program(t, "-f", file)
			want := program(t, "list", "ruleset")
			program(t, "flush", "ruleset")
			for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
				install(t, conn, rules.NewCompiler(c, f, m).Ruleset(m, nil))
			}
			if got := program(t, "list", "ruleset"); sorted(got) != sorted(want) {
				t.Errorf("by nft -f:\n%s\nby netlink:\n%s", want, got)
			}
		})
	}
}

// A plan that nft may not be able to read says so, and no other does. Where nft reads it, it is what runs.
func TestAffinityNote(t *testing.T) {
	isolated(t)
	c := rules.Config{Config: serving.DefaultConfig()}
	for _, v6 := range []bool{false, true} {
		plan := rules.Plan(model(v6), c)
		if strings.Contains(plan, "IPv6 session affinity") != v6 {
			t.Errorf("IPv6 session affinity %t:\n%s", v6, plan[:min(len(plan), 500)])
		}
		file := filepath.Join(t.TempDir(), "plan.nft")
		must(t, os.WriteFile(file, []byte(plan), 0o600))
		out, err := exec.Command("nft", "-c", "-f", file).CombinedOutput()
		if err != nil && (!v6 || !strings.Contains(string(out), "dreg < ctx->reg_low")) {
			t.Errorf("IPv6 session affinity %t: %v: %s", v6, err, out)
		}
	}
}

// install installs a Ruleset.
func install(t *testing.T, c *Conn, r *rules.Ruleset) {
	t.Helper()
	b := NewBatch(r.Family)
	b.AddTable()
	for i := range r.Common {
		b.AddSet(&r.Common[i])
	}
	for i := range r.Sets {
		b.AddSet(&r.Sets[i])
	}
	for i := range r.Chains {
		b.AddChain(&r.Chains[i])
	}
	for i := range r.Chains {
		b.AddRules(&r.Chains[i])
	}
	b.Add(r.Elements)
	must(t, c.Commit(b))
}

// What is read back is what was installed, and what differs is told.
func TestReadBack(t *testing.T) {
	for name, set := range settings {
		t.Run(name, func(t *testing.T) {
			conn := isolated(t)
			c, m := rules.Config{Config: serving.DefaultConfig()}, model(true)
			set(&c, m)
			for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
				if got, err := conn.ReadChains(f); got != nil || err != nil {
					t.Fatalf("%v: a table before there is one: %v", f, err)
				}
				r := rules.NewCompiler(c, f, m).Ruleset(m, nil)
				install(t, conn, r)
				got, err := read(conn, f)
				must(t, err)
				for i := range r.Chains {
					ch := r.Chains[i]
					if has, hook, rules := got.HasChain(&ch); !has || !hook || !rules {
						t.Errorf("%v: chain %s: %t %t %t", f, ch.Name, has, hook, rules)
					}
					ch.Rules = append(slices.Clone(ch.Rules), rules.Rule{rules.Drop{}})
					if _, _, same := got.HasChain(&ch); same {
						t.Errorf("%v: chain %s: a rule more is the same", f, ch.Name)
					}
				}
				sets := slices.Concat(r.Common, r.Sets)
				for i := range sets {
					if has, same := got.HasSet(&sets[i]); !has || !same {
						t.Errorf("%v: set %s: %t %t", f, sets[i].Name, has, same)
					}
				}
				if len(got.ChainNames()) != len(r.Chains) || len(got.SetNames()) != len(sets) || len(got.Elements) != len(r.Elements) {
					t.Errorf("%v: %d chains, %d sets, %d elements", f, len(got.ChainNames()), len(got.SetNames()), len(got.Elements))
				}
				for e, v := range r.Elements {
					if got.Elements[e] != v {
						t.Errorf("%v: %s: read back %q", f, e.Text(f, v), got.Elements[e])
					}
				}
			}
		})
	}
}

// A rule that another program has put in the place of nkp's is told from it, whatever differs.
func TestOtherRules(t *testing.T) {
	conn := isolated(t)
	list := []rules.Rule{
		{rules.Drop{}}, {rules.Return{}}, {rules.Reject{}}, {rules.Goto{Chain: "a"}}, {rules.Jump{Chain: "a"}}, {rules.Goto{Chain: "b"}},
		{rules.Prefix{Field: rules.Saddr, Prefix: netip.MustParsePrefix("10.0.0.0/8")}}, {rules.Prefix{Field: rules.Saddr, Prefix: netip.MustParsePrefix("10.0.0.0/9")}},
		{rules.Prefix{Field: rules.Daddr, Prefix: netip.MustParsePrefix("10.0.0.0/8")}}, {rules.Prefix{Field: rules.Saddr, Not: true, Prefix: netip.MustParsePrefix("10.0.0.0/8")}},
		{rules.Device{Name: "veth"}}, {rules.Device{Name: "veth*"}}, {rules.Device{Name: "veth", Not: true}}, {rules.Local{Field: rules.Saddr}}, {rules.Local{Field: rules.Daddr}},
		{rules.Protocol{Number: 6}}, {rules.Protocol{Number: 17}}, {rules.State{CtState: rules.New}}, {rules.State{CtState: rules.Invalid}}, {rules.Translated{}}, {rules.Answer{}}, {rules.Answer{Is: true}},
		{rules.Marked{Bit: 14}}, {rules.Marked{Bit: 15}}, {rules.SetMark{Bit: 14}}, {rules.SetMark{Bit: 14, On: true}}, {rules.SetMark{Bit: 15}},
		{rules.In{Key: []rules.Field{rules.Daddr}, Set: "cluster-ips"}}, {rules.In{Key: []rules.Field{rules.Daddr}, Set: "node-ips"}}, {rules.In{Key: []rules.Field{rules.OriginalDaddr}, Set: "node-ips"}},
		{rules.Lookup{Key: []rules.Field{rules.L4Proto, rules.Dport}, Map: "nodeports"}}, {rules.Lookup{Key: []rules.Field{rules.L4Proto, rules.OriginalDport}, Map: "nodeports"}},
		{rules.Counter{}}, {rules.Counter{}, rules.Drop{}},
	}
	b := NewBatch(k8s.IPv4)
	b.AddTable()
	for i := range rules.Sets {
		b.AddSet(&rules.Sets[i])
	}
	b.AddChain(&rules.Chain{Name: "a"})
	b.AddChain(&rules.Chain{Name: "b"})
	for i, r := range list {
		ch := &rules.Chain{Name: fmt.Sprint("c", i), Rules: []rules.Rule{r}}
		b.AddChain(ch)
		b.AddRules(ch)
	}
	must(t, conn.Commit(b))
	got, err := conn.ReadChains(k8s.IPv4)
	must(t, err)
	for i := range list {
		for k, r := range list {
			_, _, same := got.HasChain(&rules.Chain{Name: fmt.Sprint("c", i), Rules: []rules.Rule{r}})
			if same != (i == k) {
				t.Errorf("%q is installed, %q is the same: %t", list[i].Text(k8s.IPv4), r.Text(k8s.IPv4), same)
			}
		}
	}
}

// A refused change is told by its tag, and nothing of its batch is in force.
func TestRefused(t *testing.T) {
	conn := isolated(t)
	installed(t, conn, k8s.IPv4)
	before := program(t, "list", "ruleset")
	good := rules.Ref{Set: rules.ClusterIPs, Key: "\x09\x09\x09\x09"}
	b := NewBatch(k8s.IPv4)
	b.Tag(0)
	b.Add(rules.Elements{good: {}})
	b.Tag(1)
	b.Add(rules.Elements{{Set: rules.Services, Key: "\x09\x09\x09\x09\x06\x00\x00\x00\x00\x50\x00\x00"}: {Data: "goto nowhere"}})
	b.Tag(2)
	b.Delete(rules.Elements{{Set: rules.ClusterIPs, Key: "\x08\x08\x08\x08"}: {}})
	b.Tag(3)
	b.Add(rules.Elements{{Set: rules.ClusterIPs, Key: "\x07\x07\x07\x07"}: {}})
	err := conn.Commit(b)
	refusal, ok := errors.AsType[*RefusedError](err)
	if !ok || len(refusal.Tags) != 2 || !errors.Is(refusal.Tags[1], unix.ENOENT) || !errors.Is(refusal.Tags[2], unix.ENOENT) {
		t.Fatalf("%v", err)
	}
	if after := program(t, "list", "ruleset"); after != before {
		t.Errorf("before:\n%s\nafter a refused batch:\n%s", before, after)
	}
	// The socket works on, and what was appended keeps its tag.
	other, head := NewBatch(k8s.IPv4), NewBatch(k8s.IPv4)
	head.Add(rules.Elements{good: {}})
	other.Tag(5)
	other.Delete(rules.Elements{{Set: rules.ClusterIPs, Key: "\x08\x08\x08\x08"}: {}})
	if refusal, ok := errors.AsType[*RefusedError](conn.Commit(other)); !ok || refusal.Tags[5] == nil {
		t.Errorf("%v", refusal)
	}
	if err := conn.Commit(head); err != nil {
		t.Error(err)
	}
	if !strings.Contains(program(t, "list", "set", "ip", "nkp", "cluster-ips"), "9.9.9.9") {
		t.Error("not installed")
	}
}

// A batch that the socket's buffer does not hold is an error, and changes nothing.
func TestTooLarge(t *testing.T) {
	conn := isolated(t)
	must(t, unix.SetsockoptInt(conn.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<16))
	b := NewBatch(k8s.IPv4)
	b.AddTable()
	b.AddSet(&rules.Sets[rules.ClusterIPs])
	e := rules.Elements{}
	for i := range 10_000 {
		e[rules.Ref{Set: rules.ClusterIPs, Key: string([]byte{10, 0, byte(i >> 8), byte(i)})}] = rules.Value{}
	}
	b.Add(e)
	if err := conn.Commit(b); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("%d bytes: %v", b.Len(), err)
	}
	if got, err := conn.ReadChains(k8s.IPv4); got != nil || err != nil {
		t.Errorf("there is a table after it: %v", err)
	}
	small := NewBatch(k8s.IPv4)
	small.AddTable()
	if err := conn.Commit(small); err != nil {
		t.Error(err)
	}
}

// A Watch reports what others change of nkp's table, and neither nkp's changes nor those of other tables.
func TestWatch(t *testing.T) {
	conn := isolated(t)
	w := listening(t, &Group{}, conn)
	installed(t, conn, k8s.IPv4)
	program(t, "add", "table", "ip", "other")
	program(t, "add", "table", "ip6", "nkp")
	if changed(t, w) {
		t.Error("reported a change of nkp's own, or of another table")
	}
	for _, c := range []string{"add element ip nkp cluster-ips { 9.9.9.9 }", "insert rule ip nkp services return", "add chain ip nkp c", "flush ruleset"} {
		program(t, strings.Fields(c)...)
		if !changed(t, w) {
			t.Errorf("%s: not reported", c)
		}
	}
}

// listening returns a Watch of a Group that listens.
func listening(t *testing.T, g *Group, c *Conn) *Watch {
	t.Helper()
	w, err := g.Watch(k8s.IPv4, c.Port())
	must(t, err)
	t.Cleanup(w.Close)
	must(t, errors.Join(g.Silence(c), g.Listen(c)))
	return w
}

// socketOf returns the line of a Watch's socket in /proc/net/netlink: its groups, and the bytes that wait in it.
func socketOf(t *testing.T, w *Watch) (groups uint32, waiting int) {
	t.Helper()
	var address unix.Sockaddr
	var err error
	problem := w.raw.Control(func(fd uintptr) { address, err = unix.Getsockname(int(fd)) })
	list, errList := os.ReadFile("/proc/thread-self/net/netlink")
	must(t, errors.Join(problem, err, errList))
	for l := range strings.Lines(string(list)) { // sk Eth Pid Groups Rmem ...
		f := strings.Fields(l)
		if f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && f[2] == strconv.Itoa(int(address.(*unix.SockaddrNetlink).Pid)) {
			if _, err := fmt.Sscanf(f[3]+" "+f[4], "%x %d", &groups, &waiting); err != nil {
				t.Fatal(err)
			}
			return groups, waiting
		}
	}
	t.Fatalf("no socket of the Watch in\n%s", list)
	return 0, 0
}

// changed reports whether a Watch that listens has reported a change, once it has looked at all notifications: two more, of tables that it
// ignores, come after them. When it has received the second it is done with what came before.
func changed(t *testing.T, w *Watch) bool {
	t.Helper()
	for range 2 {
		program(t, "add table ip marker; delete table ip marker")
		wait.For(t, "the Watch to receive a notification", func() bool { _, waiting := socketOf(t, w); return waiting == 0 })
	}
	select {
	case <-w.Changed:
		return true
	default:
		return false
	}
}

// A silent Watch receives nothing, so that the kernel builds no notifications for what is programmed. What another program changes
// meanwhile is reported afterwards, and only that.
func TestSilence(t *testing.T) {
	isolated(t)
	var g Group
	conn, err := g.Open()
	must(t, err)
	defer conn.Close()
	w := listening(t, &g, conn)
	round := func(what string, want bool, do func()) {
		t.Helper()
		for range 2 { // two families at a time
			must(t, g.Silence(conn))
		}
		installed(t, conn, k8s.IPv4)
		do()
		must(t, g.Listen(conn))
		if groups, waiting := socketOf(t, w); groups != 0 || waiting != 0 || len(w.Changed) != 0 {
			t.Errorf("%s: while silent it is in groups %x, %d bytes wait, %d reports", what, groups, waiting, len(w.Changed))
		}
		must(t, g.Listen(conn))
		if got := changed(t, w); got != want {
			t.Errorf("%s: reported %v", what, got)
		}
	}
	round("nothing but own changes", false, func() {})
	round("another program's change", true, func() { program(t, "flush", "ruleset") })
	round("another program's change beside own commits without effect", true, func() {
		same := NewBatch(k8s.IPv4)
		same.AddTable()
		must(t, conn.Commit(same))
		program(t, "add", "element", "ip", "nkp", "cluster-ips", "{ 9.9.9.9 }")
	})
	round("another program's change before an own one", true, func() {
		program(t, "add", "element", "ip", "nkp", "cluster-ips", "{ 8.8.8.8 }")
		installed(t, conn, k8s.IPv4)
	})
	round("a commit that the kernel refuses", false, func() {
		wrong := NewBatch(k8s.IPv4)
		wrong.DeleteSet("no-such-set")
		if _, refused := errors.AsType[*RefusedError](conn.Commit(wrong)); !refused {
			t.Error("not refused")
		}
	})
	round("own commits without effect", false, func() {
		same := NewBatch(k8s.IPv4)
		same.AddTable()
		must(t, conn.Commit(same))
	})
	program(t, "flush", "ruleset")
	if !changed(t, w) {
		t.Error("a flush was not reported")
	}
	round("again own changes", false, func() {})
	program(t, "flush", "ruleset")
	if !changed(t, w) {
		t.Error("deaf after having been silent")
	}
	if err := errors.Join(g.Silence(conn), g.Listen(nil)); err != nil || !changed(t, w) {
		t.Errorf("not reported where it was not asked: %v", err)
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
