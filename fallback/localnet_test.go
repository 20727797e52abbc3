//go:build linux

package fallback

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// intruder is a neighbour of the node, on its uplink, that sends a packet to 127.0.0.1 every millisecond.
type intruder struct {
	t       *testing.T
	bed     *testbed.Bed
	sent    atomic.Int64
	arrived atomic.Int64 // packets that reached a listener on the node's 127.0.0.1
}

const loopbackListener = "127.0.0.1:9999"

func newIntruder(t *testing.T, b *testbed.Bed) *intruder {
	t.Helper()
	n := &intruder{t: t, bed: b}
	listener, err := b.Node.ListenPacket(loopbackListener)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{
		"ip addr flush dev lo",
		"ip route add 127.0.0.1/32 via " + b.Node.IP4.String() + " dev " + b.RouterDevice(),
	} {
		if out, err := b.Router.Exec(t.Context(), strings.Fields(c)...); err != nil {
			t.Fatal(out, err)
		}
	}
	if err := b.Router.Sysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	sender, err := b.Router.DialUDP(t.Context(), loopbackListener, testbed.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	received, sent := make(chan struct{}), make(chan struct{})
	go func() { // ended by Close
		defer close(received)
		for buf := make([]byte, 16); ; {
			if _, _, err := listener.ReadFrom(buf); err != nil {
				return
			}
			n.arrived.Add(1)
		}
	}()
	stop := make(chan struct{})
	go func() { // ended by stop
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_, _ = sender.Write([]byte("knock"))
				n.sent.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-sent
		_ = sender.Close()
		_ = listener.Close()
		<-received
	})
	return n
}

// routes sets the node's route_localnet, or gives it.
func (n *intruder) routes() string {
	n.t.Helper()
	out, err := n.bed.Node.Exec(n.t.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// knock waits until a few more packets were sent.
func (n *intruder) knock() {
	for before, i := n.sent.Load(), 0; n.sent.Load() < before+20 && i < 10_000; i++ {
		time.Sleep(time.Millisecond)
	}
}

// none fails the test if a packet has arrived since the last call.
func (n *intruder) none(what string) {
	n.t.Helper()
	n.knock()
	if k := n.arrived.Swap(0); k > 0 {
		n.t.Errorf("%s: %d packets from a neighbour reached %s", what, k, loopbackListener)
	}
}

// stops waits until no packet arrives any more.
func (n *intruder) stops(what string, d time.Duration) {
	n.t.Helper()
	start := time.Now()
	if !eventually(d, func() bool {
		n.knock()
		n.arrived.Store(0)
		n.knock()
		return n.arrived.Load() == 0
	}) {
		n.t.Errorf("%s: packets from a neighbour reach %s after %v", what, loopbackListener, d)
	}
	n.t.Logf("%s: closed after %v", what, time.Since(start).Round(10*time.Millisecond))
	n.arrived.Store(0)
}

// Whatever nkp does, no neighbour reaches what listens at 127.0.0.1 (CVE-2020-8558): during the first sync of many Services,
// at a restart, without NodePorts at 127.0.0.1, after a cleanup. What another has opened is closed again.
func TestNeighboursStayOffLoopback(t *testing.T) {
	each(t, func(t *testing.T, backend xtables.Backend) {
		for name, scope := range map[string]rules.Scope{"everything": rules.Everything, "host": rules.Host} {
			t.Run(name, func(t *testing.T) { testLoopback(t, backend, scope) })
		}
	})
}

func testLoopback(t *testing.T, backend xtables.Backend, scope rules.Scope) {
	const services = 200 // more than one transaction takes over nf_tables
	b, pods := bed(t, testbed.Options{PodBridge: scope == rules.Host, NoServiceRoutes: scope == rules.Host})
	foreign(t, b, backend)
	o := defaults(backend)
	if o.Scope = scope; scope == rules.Host {
		o.PodDevice = b.Bridge
	}
	n := newIntruder(t, b)
	if err := b.Node.Sysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	if !eventually(10*time.Second, func() bool { return n.arrived.Load() > 10 }) {
		t.Fatal("the intruder's packets do not arrive even where nothing keeps them off")
	}
	if err := b.Node.Sysctl("ipv4/conf/all/route_localnet", "0"); err != nil {
		t.Fatal(err)
	}
	n.stops("before", 10*time.Second)

	manifests := nodeObject + service("web", 1, "type: NodePort", "externalTrafficPolicy: Local", "healthCheckNodePort: 9999") + endpoints("web", pods[0])
	served := packet{what: "NodePort at localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{pods[0].Name}}
	p := start(t, b, o, manifests)
	n.none("a small first sync")
	if n.routes() != "1" {
		t.Error("route_localnet is not set")
	}
	served.check(t)

	// What is removed while nkp runs comes back; in between, the kernel cannot know.
	for _, c := range [][]string{{"-F"}, {"-F", "KUBE-FIREWALL"}, {"-D", "INPUT", "-j", "KUBE-FIREWALL"}} {
		iptables(t, b, backend, append([]string{"iptables", "-w", "20"}, c...)...) // nkp takes the lock, too
		n.stops("iptables "+strings.Join(c, " "), time.Minute)
		if !eventually(20*time.Second, func() bool { return n.routes() == "1" }) {
			t.Error("route_localnet stays unset after the repair")
		}
		n.none("after the repair")
		served.check(t)
	}

	// The guard is there before many Services are, and a start closes what was opened while nkp was away.
	cleanup := func(what string) {
		t.Helper()
		p.kill()
		p = launch(t, b, o)
		p.ask(request{Op: "cleanup"})
		p.kill()
		n.none(what)
	}
	cleanup("a cleanup")
	p = launch(t, b, o)
	p.ask(request{Op: "generate", N: services})
	if !eventually(20*time.Second, func() bool { return n.routes() == "1" }) {
		t.Error("route_localnet is not set in the first sync")
	}
	p.until(time.Now(), func(f FamilyStatus) bool { return f.InStep && f.Services == services }, time.Minute)
	n.none("the first sync of many Services")
	p.kill()
	iptables(t, b, backend, "iptables", "-F")
	p = launch(t, b, o)
	p.ask(request{Op: "generate", N: services})
	n.stops("a start that finds the guard flushed", 5*time.Second)
	p.until(time.Now(), func(f FamilyStatus) bool { return f.InStep && f.Services == services }, time.Minute)
	n.none("the sync after that")
	cleanup("a cleanup of many Services")
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
	cleanup("a cleanup")
	if n.routes() != "0" {
		t.Error("route_localnet stays set after a cleanup")
	}

	// What another has set is not nkp's to unset, and stays guarded.
	if err := b.Node.Sysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	p = start(t, b, o, manifests)
	n.stops("a start with route_localnet set by another", 5*time.Second)
	p.kill()
	o.LocalhostNodePorts = false
	p = start(t, b, o, manifests)
	cleanup("a cleanup where another has set route_localnet")
	if n.routes() != "1" {
		t.Error("nkp has unset what another has set")
	}
}

// Where /proc/sys is read-only, as in a container, nkp sets route_localnet by the file that a volume has; without one it says
// so, and the guard is there all the same.
func TestLocalnetInAContainer(t *testing.T) {
	testbed.Linux.Require(t)
	for _, volume := range []bool{true, false} {
		b, pods := bed(t, testbed.Options{})
		n := newIntruder(t, b)
		o := defaults(xtables.NFT)
		file := filepath.Join(t.TempDir(), "route_localnet")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
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
		} else if err := b.Node.Sysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
		n.none("in a container")
	}
}
