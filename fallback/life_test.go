//go:build linux

package fallback_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// inIPTables runs one of the back end's programs in the node: iptables, ip6tables, iptables-save, ...
func inIPTables(t *testing.T, b *testbed.Bed, backend restore.Backend, argv ...string) string {
	t.Helper()
	infix := map[restore.Backend]string{restore.NFT: "-nft", restore.Legacy: "-legacy"}[backend]
	name, rest, _ := strings.Cut(argv[0], "-")
	args := argv[1:]
	if rest != "save" {
		args = append([]string{"-w", "60"}, args...) // nkp takes the lock, too
	}
	if rest != "" {
		rest = "-" + rest
	}
	return run(t, b.Node, append([]string{name + infix + rest}, args...)...)
}

// inNFTables runs nft in the node.
func inNFTables(t *testing.T, b *testbed.Bed, argv ...string) string {
	t.Helper()
	return run(t, b.Node, append([]string{"nft"}, argv...)...)
}

// A Plane that starts again, killed or told to stop before, finds its rules in place and writes nothing; their counters go on, and so
// does session affinity. Over nftables it is so whatever had happened to the slots of its endpoints.
func TestRestartWritesNothing(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		o.Tracker.ServiceCIDRs = testbed.ServiceRanges[:2]
		manifests := func(list ...*testbed.Pod) string {
			return nodeObject + service("web", 1, "type: NodePort", "sessionAffinity: ClientIP", "externalTrafficPolicy: Local") +
				endpoints("web", list...) +
				service("none", 2, "type: NodePort") + endpoints("none") +
				service("ranges", 3, "type: LoadBalancer", `loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.11/32, "fd00:a::/32"]`) +
				"status: {loadBalancer: {ingress: [{ip: 20.0.0.3}]}}\n" + endpoints("ranges", pods[2])
		}
		p := start(t, b, o, manifests(pods...))
		serving := pods
		if backend == onNFTables {
			serving = pods[1:] // the first slot is another's now
			p.sync(manifests(serving...))
		}
		first, err := pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80")
		must(t, err)
		before := counters(t, b, backend)
		for _, how := range []string{"kill", "stop"} {
			if how == "stop" {
				p.ask(request{Op: "stop"})
			}
			p.kill()
			p = start(t, b, o, manifests(serving...))
			for _, f := range p.status().Families {
				if f.Rules != 0 || f.Transactions != 0 || f.Services != 6 {
					t.Errorf("after %s: %+v", how, f)
				}
			}
		}
		if after := counters(t, b, backend); before == "" || after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		for range chance.Trials(0.5) {
			if a, err := pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil || a.Pod != first.Pod {
				t.Errorf("session affinity led to %s, then to %s: %v", first.Pod, a.Pod, err)
			}
		}
	})
}

// counters returns what is installed for Services with its counters: a table, or the rules that translate.
func counters(t *testing.T, b *testbed.Bed, backend restore.Backend) string {
	t.Helper()
	var lines []string
	if backend == onNFTables {
		for l := range strings.Lines(inNFTables(t, b, "list", "table", "ip", "nkp")) {
			if !strings.Contains(l, "expires") { // how long clients are remembered
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	save := inIPTables(t, b, backend, "iptables-save", "-c", "-t", "nat")
	if lines = regexp.MustCompile(`(?m)^\[[1-9]\d*:\d+\] .*-j DNAT.*$`).FindAllString(save, -1); len(lines) == 0 {
		t.Error("no packets are counted")
	}
	return strings.Join(lines, "\n")
}

// What somebody else does to the rules is undone, over nftables at once: a flush of everything, a rule or an element taken away, one too
// many, a chain gone.
func TestRepair(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		if backend == onNFTables {
			o.SyncPeriod = time.Hour // notifications alone
		}
		p := start(t, b, o, nodeObject+service("web", 1, "type: NodePort", "sessionAffinity: ClientIP")+endpoints("web", pods[0])+
			service("none", 2, "type: NodePort")+endpoints("none"))
		for what, command := range damage(t, b, backend) {
			p.repaired(what, func() {
				if backend == onNFTables {
					inNFTables(t, b, command...)
				} else {
					inIPTables(t, b, backend, command...)
				}
			})
			for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80", "172.16.0.2:30001"} {
				for _, from := range []*testbed.Host{pods[1].Host, b.Node} {
					if _, err := from.Ask(t.Context(), "tcp", to); err != nil {
						t.Errorf("after %s: %v", what, err)
					}
				}
			}
		}
	})
}

// damage are commands that break what is installed. Each is one step, because nkp may repair it at any moment: a second command would
// meet the repair.
func damage(t *testing.T, b *testbed.Bed, backend restore.Backend) map[string][]string {
	t.Helper()
	if backend == onNFTables {
		commands := map[string][]string{}
		for what, command := range map[string]string{
			"flush":            "flush ruleset",
			"deleted table":    "delete table ip nkp",
			"deleted table v6": "delete table ip6 nkp",
			"lost element":     "delete element ip nkp services { 40.0.0.1 . tcp . 80 }",
			"lost endpoint":    "delete element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 }",
			"another endpoint": "delete element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 } ; " +
				"add element ip nkp endpoints { 40.0.0.1 . tcp . 80 . 0 : 10.0.0.99 . 80 }",
			"foreign element": "add element ip nkp cluster-ips { 9.9.9.9 }",
			"emptied chain":   "flush chain ip nkp external",
			"foreign rule":    "insert rule ip nkp services return",
			"foreign chain":   "add chain ip nkp mine",
			"lost hook":       "delete chain ip nkp prerouting",
			"emptied set":     "flush map ip6 nkp services",
		} {
			commands[what] = strings.Fields(command)
		}
		return commands
	}
	chain := regexp.MustCompile(`KUBE-SVC-\w+`).FindString(inIPTables(t, b, backend, "iptables", "-t", "nat", "-S", "KUBE-SERVICES"))
	if chain == "" {
		t.Fatal("no rules to break")
	}
	// Over legacy the chains go, too: without --noflush iptables-restore empties the tables that it names.
	flush := func(program, table string) []string {
		if backend == restore.NFT {
			return []string{program, "-t", table, "-F"}
		}
		name := filepath.Join(t.TempDir(), table)
		must(t, os.WriteFile(name, []byte("*"+table+"\nCOMMIT\n"), 0o644))
		return []string{program + "-restore", name}
	}
	return map[string][]string{
		"flush of nat":       flush("iptables", "nat"),
		"flush of filter":    flush("iptables", "filter"),
		"flush of ip6tables": flush("ip6tables", "nat"),
		"emptied chain":      {"iptables", "-t", "nat", "-F", chain},
		"lost rule":          {"iptables", "-F", "KUBE-SERVICES"},
		"foreign rule":       {"iptables", "-t", "nat", "-I", "KUBE-SERVICES", "-j", "RETURN"},
		"lost jump":          {"iptables", "-t", "nat", "-D", "PREROUTING", "1"},
		"lost fixed rule":    {"iptables", "-t", "nat", "-F", "KUBE-MARK-MASQ"},
	}
}

// What kubelet and the CNI plugins portmap and flannel do to the base chains harms no Service and is no repair. A jump of portmap's that
// takes packets for a NodePort is.
func TestNeighboursAreNoRepair(t *testing.T) {
	each(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		p := start(t, b, defaults(backend), nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
		for _, c := range []string{
			"iptables -t nat -N CNI-HOSTPORT-MASQ",
			"iptables -t nat -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
			"iptables -t nat -I POSTROUTING -m comment --comment CNI -j CNI-HOSTPORT-MASQ",
			"iptables -t nat -N CNI-HOSTPORT-SETMARK",
			"iptables -t nat -A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000",
			"iptables -t nat -N CNI-HOSTPORT-DNAT",
			"iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
			"iptables -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
			"iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 30001 -j DNAT --to-destination 10.0.0.99:80",
			"iptables -t nat -N FLANNEL-POSTRTG",
			"iptables -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN",
			"iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE",
			"iptables -t nat -I POSTROUTING -j FLANNEL-POSTRTG",
			"iptables -N FLANNEL-FWD",
			"iptables -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT",
			"iptables -I FORWARD -j FLANNEL-FWD",
			"iptables -t mangle -N KUBE-KUBELET-CANARY",
			"iptables -t mangle -N KUBE-IPTABLES-HINT",
		} {
			inIPTables(t, b, backend, strings.Fields(c)...)
		}
		p.audited()
		if n := p.repairs(); n > 0 {
			t.Errorf("%d repairs: %+v", n, p.status().Families[0].LastRepair)
		}
		for _, to := range []string{"40.0.0.1:80", "172.16.0.2:30001"} {
			if _, err := pods[1].Ask(t.Context(), "tcp", to); err != nil {
				t.Error(err)
			}
		}
		p.repaired("portmap takes the packets of a NodePort", func() { portmapFirst(t, b, backend) })
		if _, err := b.External.Ask(t.Context(), "tcp", "172.16.0.2:30001"); err != nil {
			t.Error(err)
		}
	})
}

// portmapFirst has the CNI plugin portmap start again, which puts its jump before all others.
func portmapFirst(t *testing.T, b *testbed.Bed, backend restore.Backend) {
	t.Helper()
	for _, how := range []string{"-D", "-I"} {
		inIPTables(t, b, backend, strings.Fields("iptables -t nat "+how+" PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT")...)
	}
}

// Whatever changes, established connections stay and new ones are served: endpoints come and go, the Plane is killed and starts again
// with other rules, another Service takes the place of one.
func TestNoGap(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		manifests := func(i int) string {
			return nodeObject + service("web", 1, "type: NodePort") + endpoints("web", append(pods[:1:1], pods[1:1+i%3]...)...) +
				service(fmt.Sprint("other", i), 10+i%100, "type: NodePort", "sessionAffinity: ClientIP") +
				endpoints(fmt.Sprint("other", i), pods[1])
		}
		p := start(t, b, o, manifests(0))
		held, err := pods[1].Hold(t.Context(), "40.0.0.1:80", testbed.DialOptions{})
		must(t, err)

		const batch = 10
		var batches atomic.Int32 // of new connections
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // ended by stop
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, errs := b.External.Many(t.Context(), batch, 4, "172.16.0.2:30001")
				for _, err := range errs {
					t.Error("a new connection:", err)
				}
				batches.Add(1)
			}
		}()

		last := nightly.Count(8, 30)
		for i := 1; i <= last; i++ {
			p.update(manifests(i))
			before := batches.Load()
			wait.For(t, "new connections after a change", func() bool { return batches.Load() >= before+2 })
			if i%4 == 0 {
				p.kill()
				o.MasqueradeAll = !o.MasqueradeAll
				p = start(t, b, o, manifests(i))
			}
		}
		p.settle()
		close(stop)
		<-stopped
		if err := held.Check(); err != nil {
			t.Error("the established connection:", err)
		}

		if backend == onNFTables {
			s := inNFTables(t, b, "list", "table", "ip", "nkp")
			if strings.Count(s, "map clients-") != 2 || strings.Contains(s, "40.0.0.11 ") {
				t.Errorf("parts of Services that are gone are left:\n%s", s)
			}
			return
		}
		wait.For(t, "the chains of Services that are gone to go, which is the last step of a change", func() bool {
			return !strings.Contains(inIPTables(t, b, backend, "iptables-save", "-t", "nat"), "other1:")
		})
		wait.For(t, "the chains of endpoints that are gone to be deleted", func() bool {
			s := inIPTables(t, b, backend, "iptables-save", "-t", "nat")
			return strings.Count(s, "\n:KUBE-SEP-") == 2*(1+last%3+1) // of two ports each
		})
	})
}

// Cleanup takes away what is ours and nothing else, and no change of nkp's does.
func TestCleanup(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		foreign(t, b, backend)
		before := saved(t, b, backend)
		o := defaults(backend)
		o.Tracker.ServiceCIDRs = testbed.ServiceRanges[:2]
		p := start(t, b, o, nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods...)+
			service("none", 2, "type: NodePort")+endpoints("none"))
		if saved(t, b, backend) == before {
			t.Fatal("nothing was installed")
		}
		p.kill()
		cleaner := launch(t, b, o)
		first, nothing := cleaner.ask(request{Op: "cleanup"}).Text, "{Chains:0 Rules:0 Left:0}"
		if backend == onNFTables {
			nothing = "0 tables"
		}
		if strings.Contains(first, "Chains:0") || backend == onNFTables && first != "2 tables" {
			t.Error(first)
		}
		if got := saved(t, b, backend); got != before {
			t.Errorf("before:\n%s\nafter cleanup:\n%s", before, got)
		}
		if again := cleaner.ask(request{Op: "cleanup"}).Text; again != nothing {
			t.Error("a second cleanup removed", again)
		}
	})
}

// A back end whose tables cannot be read, as where the kernel lacks them, is an error of a cleanup, and keeps none of the others from
// being cleaned up.
func TestCleanupOfWhatIsReadable(t *testing.T) {
	each(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		o := defaults(backend)
		p := start(t, b, o, nodeObject+service("web", 1)+endpoints("web", pods...))
		p.kill()
		dir := t.TempDir()
		const broken = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'iptables v1.8.9 (nf_tables)'\n" +
			"echo 'Could not fetch rule set generation id: Invalid argument' >&2\nexit 4\n"
		must(t, os.WriteFile(filepath.Join(dir, "iptables-nft"), []byte(broken), 0o755))
		cleaner := launchAs(t, b, o, "env", "PATH="+dir+":"+os.Getenv("PATH"), os.Args[0])
		if a := cleaner.try(request{Op: "cleanup"}); !strings.Contains(a.Err, "back end nf_tables, IPv4") || !strings.Contains(a.Err, "generation id") {
			t.Errorf("the error: %q", a.Err)
		}
		for program, cleaned := range map[string]bool{"iptables-save": backend != restore.NFT, "ip6tables-save": true} {
			if text := inIPTables(t, b, backend, program); strings.Contains(text, "KUBE-SERVICES") == cleaned {
				t.Errorf("cleaned up: %t; %s prints\n%s", cleaned, program, text)
			}
		}
	})
}

// foreign makes rules of docker, of portmap and of a host's firewall; over nftables, tables of others.
func foreign(t *testing.T, b *testbed.Bed, backend restore.Backend) {
	t.Helper()
	if backend == onNFTables {
		for _, c := range []string{
			"add table inet firewall",
			"add chain inet firewall input { type filter hook input priority 0 ; policy accept ; }",
			"add rule inet firewall input tcp dport 9 drop",
			"add table ip nkp-other",
			"add map ip nkp-other services { type ipv4_addr : verdict ; }",
		} {
			inNFTables(t, b, strings.Fields(c)...)
		}
		inIPTables(t, b, restore.NFT, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.99.0.0/16", "-j", "MASQUERADE")
		return
	}
	for _, c := range []string{
		"iptables -t nat -N DOCKER",
		"iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
		"iptables -t nat -A DOCKER -p tcp --dport 8080 -j DNAT --to-destination 10.0.0.12:80",
		"iptables -N DOCKER-USER",
		"iptables -A FORWARD -j DOCKER-USER",
		"iptables -t nat -N CNI-HOSTPORT-DNAT",
		"iptables -t nat -I PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
		"iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 30001 -j DNAT --to-destination 10.0.0.12:81",
		"iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 9090 -j DNAT --to-destination 10.0.0.12:80",
		"iptables -N HOST-FIREWALL",
		"iptables -A INPUT -p tcp --dport 22 -j HOST-FIREWALL",
		"iptables -A HOST-FIREWALL ! -s 172.16.0.0/16 -j DROP",
		"iptables -P FORWARD DROP",
		"ip6tables -t nat -N KUBE-UNKNOWN",
	} {
		inIPTables(t, b, backend, strings.Fields(c)...)
	}
}

// saved returns all tables that services use, without counters and comments.
func saved(t *testing.T, b *testbed.Bed, backend restore.Backend) string {
	t.Helper()
	if backend == onNFTables {
		return inNFTables(t, b, "-s", "list", "ruleset")
	}
	text := ""
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for _, table := range []string{"nat", "filter"} {
			for l := range strings.Lines(inIPTables(t, b, backend, program, "-t", table)) {
				if !strings.HasPrefix(l, "#") {
					l, _, _ = strings.Cut(l, " [")
					text += strings.TrimRight(l, "\n") + "\n"
				}
			}
		}
	}
	return text
}

// Services live beside docker's chains, the CNI plugin portmap's and a firewall whose policy is to forward nothing:
// NodePorts come before host ports, and all others' rules go on working.
func TestCoexistence(t *testing.T) {
	each(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		foreign(t, b, backend)
		for _, r := range []string{
			"iptables -A FORWARD -d 10.0.0.12 -p tcp --dport 80 -j ACCEPT",
			"iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		} {
			inIPTables(t, b, backend, strings.Fields(r)...)
		}
		p := start(t, b, defaults(backend), nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
		check := func() {
			t.Helper()
			for _, c := range []packet{
				{what: "NodePort before host port", from: b.External, proto: "tcp", to: "172.16.0.2:30001", by: []string{"pod-11"}},
				{what: "host port", from: b.External, proto: "tcp", to: "172.16.0.2:9090", by: []string{"pod-12"}},
				{what: "published port", from: b.External, proto: "tcp", to: "172.16.0.2:8080", by: []string{"pod-12"}},
				{what: "ClusterIP from outside", from: b.External, proto: "tcp", to: "40.0.0.1:80", by: []string{"pod-11"}},
				{what: "not forwarded", from: b.External, proto: "tcp", to: "10.0.0.11:80", err: testbed.ErrTimeout, control: "172.16.0.2:9090"},
				{what: "not let in", from: b.External, proto: "tcp", to: "172.16.0.2:22", err: testbed.ErrTimeout, control: "172.16.0.2:23"},
			} {
				c.check(t)
			}
		}
		check()
		// A plugin that starts later and puts itself first is passed again.
		p.repaired("a plugin puts itself first", func() { portmapFirst(t, b, backend) })
		check()
	})
}
