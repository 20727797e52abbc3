//go:build linux

package fallback_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// intruder is a neighbour of the node, on its uplink, that sends a packet to 127.0.0.1 every millisecond.
type intruder struct {
	t       *testing.T
	bed     *testbed.Bed
	mu      sync.Mutex // protects the order of what is sent
	knock   net.Conn   // to the node's 127.0.0.1
	control net.Conn   // to the node's address, by the same path
	heard   chan int   // has a value once a control has arrived: how many packets to 127.0.0.1 have before it
}

const loopbackListener = "127.0.0.1:9999"

// newIntruder returns an intruder whose packets arrive unless something keeps them off.
func newIntruder(t *testing.T, b *testbed.Bed) *intruder {
	t.Helper()
	n := &intruder{t: t, bed: b, heard: make(chan int)}
	listener, err := b.Node.ListenPacket(":9999") // one socket, so that what arrives keeps its order
	must(t, err)
	for _, c := range []string{
		"ip addr flush dev lo",
		"ip route add 127.0.0.1/32 via " + b.Node.IP4.String() + " dev " + b.RouterDevice(),
	} {
		run(t, b.Router, strings.Fields(c)...)
	}
	must(t, b.Router.Sysctl("ipv4/conf/all/route_localnet", "1"))
	for conn, to := range map[*net.Conn]string{&n.knock: loopbackListener, &n.control: b.Node.IP4.String() + ":9999"} {
		if *conn, err = b.Router.DialUDP(t.Context(), to, testbed.DialOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	stop, received, sent := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { // ended by Close
		defer close(received)
		knocks := 0
		for buf := make([]byte, 16); ; {
			k, _, err := listener.ReadFrom(buf)
			if err != nil {
				return
			}
			if string(buf[:k]) == "knock" {
				knocks++
				continue
			}
			select {
			case n.heard <- knocks:
				knocks = 0
			case <-stop:
				return
			}
		}
	}()
	go func() { // ended by stop
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				n.send(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-sent
		_, _, _ = n.knock.Close(), n.control.Close(), listener.Close()
		<-received
	})

	n.set("1")
	if n.arrived() == 0 {
		t.Fatal("the intruder's packets do not arrive even where nothing keeps them off")
	}
	n.set("0")
	n.stops("before")
	return n
}

// send sends packets to 127.0.0.1.
func (n *intruder) send(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range count {
		_, _ = n.knock.Write([]byte("knock"))
	}
}

// set sets the node's route_localnet.
func (n *intruder) set(to string) {
	n.t.Helper()
	must(n.t, n.bed.Node.Sysctl("ipv4/conf/all/route_localnet", to))
}

// routes returns the node's route_localnet.
func (n *intruder) routes() string {
	n.t.Helper()
	out, err := n.bed.Node.Exec(n.t.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	must(n.t, err)
	return strings.TrimSpace(out)
}

// arrived sends some packets and, behind them, a control, and returns how many have reached the listener since the last call.
func (n *intruder) arrived() int {
	n.t.Helper()
	n.send(20)
	n.mu.Lock()
	_, err := n.control.Write([]byte("control"))
	n.mu.Unlock()
	must(n.t, err)
	return wait.Receive(n.t, "the intruder's control", n.heard)
}

// none fails the test if a packet has arrived since the last call.
func (n *intruder) none(what string) {
	n.t.Helper()
	if k := n.arrived(); k > 0 {
		n.t.Errorf("%s: %d packets from a neighbour reached %s", what, k, loopbackListener)
	}
}

// stops waits until no packet arrives any more.
func (n *intruder) stops(what string) {
	n.t.Helper()
	wait.For(n.t, what+": no more packets from a neighbour", func() bool { return n.arrived() == 0 })
}

// opens waits until nkp has set route_localnet.
func (n *intruder) opens(what string) {
	n.t.Helper()
	wait.For(n.t, what+": route_localnet to be set", func() bool { return n.routes() == "1" })
}

// Whatever nkp does, no neighbour reaches what listens at 127.0.0.1 (CVE-2020-8558): during the first sync of many Services,
// at a restart, without NodePorts at 127.0.0.1, after a cleanup. What another has opened is closed again.
func TestNeighboursStayOffLoopback(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		for name, scope := range map[string]serving.Scope{"everything": serving.Everything, "host": serving.Host} {
			t.Run(name, func(t *testing.T) {
				if (backend == restore.Legacy) != (scope == serving.Host) {
					nightly.Only(t, "the gate runs one scope over each back end")
				}
				testLoopback(t, backend, scope)
			})
		}
	})
}

func testLoopback(t *testing.T, backend restore.Backend, scope serving.Scope) {
	const services = 200 // more than one transaction takes over nf_tables
	b, pods := bed(t, testbed.Options{PodBridge: scope == serving.Host, NoServiceRoutes: scope == serving.Host})
	foreign(t, b, backend)
	o := defaults(backend)
	if o.Scope = scope; scope == serving.Host {
		o.PodDevice = b.Bridge
	}
	n := newIntruder(t, b)
	manifests := nodeObject + service("web", 1, "type: NodePort", "externalTrafficPolicy: Local", "healthCheckNodePort: 9999") + endpoints("web", pods[0])
	served := packet{what: "NodePort at localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{pods[0].Name}}
	p := start(t, b, o, manifests)
	n.none("a small first sync")
	if n.routes() != "1" {
		t.Error("route_localnet is not set")
	}
	served.check(t)

	// What is removed while nkp runs comes back; in between, the kernel cannot know.
	removals := []string{"-F", "-F KUBE-FIREWALL", "-D INPUT -j KUBE-FIREWALL"}
	if backend == onNFTables {
		removals = []string{"flush chain ip nkp localnet-guard", "delete chain ip nkp localnet-guard", "flush ruleset"}
	}
	remove := func(what string) {
		t.Helper()
		if backend == onNFTables {
			inNFTables(t, b, strings.Fields(what)...)
		} else {
			inIPTables(t, b, backend, append([]string{"iptables"}, strings.Fields(what)...)...)
		}
	}
	for _, what := range removals {
		p.repaired(what, func() { remove(what) })
		n.stops(what)
		n.opens("after the repair")
		n.none("after the repair")
		served.check(t)
	}

	// The guard is there before many Services are, and a start closes what was opened while nkp was away.
	cleanup := func() {
		t.Helper()
		p.kill()
		p = launch(t, b, o)
		p.ask(request{Op: "cleanup"})
		p.kill()
	}
	cleanup()
	n.none("a cleanup")
	p = launch(t, b, o)
	p.ask(request{Op: "generate", N: services})
	n.opens("the first sync of many Services")
	p.until("the first sync", func(f fallback.FamilyStatus) bool { return f.InStep && f.Services == services })
	n.none("the first sync of many Services")
	p.kill()
	remove(removals[0])
	p = launch(t, b, o)
	p.ask(request{Op: "generate", N: services})
	n.stops("a start that finds the guard flushed")
	p.until("the sync after that", func(f fallback.FamilyStatus) bool { return f.InStep && f.Services == services })
	n.none("the sync after that")
	cleanup()
	n.none("a cleanup of many Services")
	p = start(t, b, o, manifests)
	served.check(t)

	o.LocalhostNodePorts = false
	p.kill()
	p = start(t, b, o, manifests)
	if n.routes() != "0" {
		t.Error("without NodePorts at 127.0.0.1, route_localnet stays set")
	}
	n.none("without NodePorts at 127.0.0.1")

	o.LocalhostNodePorts = true
	p.kill()
	p = start(t, b, o, manifests)
	served.check(t)
	cleanup()
	n.none("a cleanup")
	if n.routes() != "0" {
		t.Error("route_localnet stays set after a cleanup")
	}

	// What another has set is not nkp's to unset, and stays guarded.
	n.set("1")
	p = start(t, b, o, manifests)
	n.stops("a start with route_localnet set by another")
	p.kill()
	o.LocalhostNodePorts = false
	p = start(t, b, o, manifests)
	cleanup()
	if backend != onNFTables { // there the guard goes with the table
		n.none("a cleanup where another has set route_localnet")
	}
	if n.routes() != "1" {
		t.Error("nkp has unset what another has set")
	}
}

// Whoever flushes the rules while nkp is away, or sets route_localnet back while it runs: nkp knows what it has set. It closes it until the
// guard is there, sets it again, and unsets it in a cleanup.
func TestLocalnetOfFlushedTables(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		o := defaults(backend)
		manifests := nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[0])
		p := start(t, b, o, manifests)
		served := packet{what: "NodePort at localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{pods[0].Name}}
		served.check(t)
		n.set("0")
		n.opens("after another has set it back")
		served.check(t)

		flush := func() {
			t.Helper()
			if p.kill(); backend == restore.Legacy {
				for _, c := range []string{"-F", "-X", "-t nat -F", "-t nat -X"} {
					inIPTables(t, b, backend, append([]string{"iptables"}, strings.Fields(c)...)...)
				}
			} else {
				inNFTables(t, b, "flush", "ruleset")
			}
		}
		flush()
		p = start(t, b, o, manifests)
		n.arrived() // what came until then
		n.none("a start after a flush")
		served.check(t)
		flush()
		o.LocalhostNodePorts = false
		p = start(t, b, o, manifests)
		if n.routes() != "0" {
			t.Error("route_localnet stays set after a flush and a start without NodePorts at 127.0.0.1")
		}
		p.kill()
		o.LocalhostNodePorts = true
		p = start(t, b, o, manifests)
		flush()
		p = launch(t, b, o)
		p.ask(request{Op: "cleanup"})
		if n.routes() != "0" {
			t.Error("route_localnet stays set after a flush and a cleanup")
		}
	})
}

// A namespace gets the number of one that is gone, and with it what nkp has recorded of that one: who has set route_localnet in this one is
// another.
func TestLocalnetOfAFormerNamespace(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, _ := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		n.set("1")
		must(t, os.WriteFile(localnetRecord(t, b), []byte("1"), 0o600))
		launch(t, b, defaults(backend)).ask(request{Op: "cleanup"})
		if n.routes() != "1" {
			t.Error("nkp has unset route_localnet, which it had not set")
		}
	})
}

// Whoever deletes the record while nkp runs: it records again that it has set route_localnet, so that the next run unsets it.
func TestLocalnetIsRecordedAgain(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		o := defaults(backend)
		p := start(t, b, o, nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
		must(t, os.Remove(localnetRecord(t, b)))
		wait.NoError(t, "the record", func() error { _, err := os.Stat(localnetRecord(t, b)); return err })
		p.kill()
		launch(t, b, o).ask(request{Op: "cleanup"})
		if n.routes() != "0" {
			t.Error("route_localnet stays set after a cleanup")
		}
	})
}

// Another program has unset route_localnet before a cleanup, and sets it after that: it is that program's.
func TestLocalnetIsAnothersAfterACleanup(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		o := defaults(backend)
		p := start(t, b, o, nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
		p.kill()
		for _, is := range []string{"0", "1"} {
			n.set(is)
			launch(t, b, o).ask(request{Op: "cleanup"})
			if n.routes() != is {
				t.Errorf("another has set route_localnet to %s, and a cleanup of nkp to %s", is, n.routes())
			}
		}
	})
}

// localnetRecord returns the file in which nkp records that it has set the node's route_localnet.
func localnetRecord(t *testing.T, b *testbed.Bed) string {
	t.Helper()
	number, err := b.Node.Exec(t.Context(), "stat", "-L", "-c", "%i", "/proc/self/ns/net")
	must(t, err)
	return filepath.Join(b.RunDir, "netns-"+strings.TrimSpace(number)+".route_localnet")
}

// A process of the node is left alone at the loopback addresses at which no NodePort is served, whether its Service has endpoints or not.
func TestProcessAtLoopback(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		for _, port := range []int{30001, 30002} {
			_, err := b.Node.ServeTCP(port)
			must(t, err)
			_, err = b.Node.ServeUDP(port + 1000)
			must(t, err)
		}
		manifests := nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[0]) +
			service("none", 2, "type: NodePort") + endpoints("none") // refused at the addresses that are served
		own := []string{b.Node.Name}
		for _, localhost := range []bool{true, false} {
			o := defaults(backend)
			o.LocalhostNodePorts = localhost
			p := start(t, b, o, manifests)
			list := []packet{
				{what: "IPv6", proto: "tcp", to: "[::1]:30001", by: own}, {what: "IPv6, no endpoints", proto: "tcp", to: "[::1]:30002", by: own},
				{what: "IPv6, no endpoints", proto: "udp", to: "[::1]:31002", by: own},
				{what: "the node's address, no endpoints", proto: "tcp", to: "172.16.0.2:30002", err: testbed.ErrRefused},
			}
			if localhost {
				list = append(list, packet{what: "IPv4, no endpoints", proto: "tcp", to: "127.0.0.1:30002", err: testbed.ErrRefused})
			} else {
				list = append(list, packet{what: "IPv4", proto: "tcp", to: "127.0.0.1:30001", by: own},
					packet{what: "IPv4, no endpoints", proto: "tcp", to: "127.0.0.1:30002", by: own},
					packet{what: "IPv4, no endpoints", proto: "udp", to: "127.0.0.5:31002", by: own})
			}
			for _, k := range list {
				k.from = b.Node
				k.check(t)
			}
			p.kill()
		}
	})
}

// Where /proc/sys is read-only, as in a container, nkp sets route_localnet by the file that a volume has; without one it says
// so, and the guard is there all the same.
func TestLocalnetInAContainer(t *testing.T) {
	testbed.Linux.Require(t)
	for _, volume := range []bool{true, false} {
		b, pods := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		o := defaults(restore.NFT)
		file := filepath.Join(t.TempDir(), "route_localnet")
		must(t, os.WriteFile(file, nil, 0o600))
		o.LocalnetFile = file
		script := `mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0"`
		if volume {
			script = `mount --bind /proc/sys/net/ipv4/conf/all/route_localnet "$LOCALNET" && ` + script
		}
		p := launchAs(t, b, o, "env", "LOCALNET="+file, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, os.Args[0])
		p.sync(nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[0]))
		if got, want := n.routes(), map[bool]string{true: "1", false: "0"}[volume]; got != want {
			t.Errorf("volume %t: route_localnet is %s, want %s", volume, got, want)
		}
		c := packet{what: "NodePort at localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{pods[0].Name}}
		if volume {
			c.check(t)
		} else {
			n.set("1")
		}
		n.none("in a container")
	}
}
