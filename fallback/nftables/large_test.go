//go:build linux

package nftables

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// largeNode is a network namespace with a worker of mode nftables.
type largeNode struct {
	t      *testing.T
	o      fallback.Options
	w      *worker
	in     *dataplane.Inbox
	m      *k8s.Model
	status fallback.FamilyStatus
}

// newLargeNode must be called by a goroutine that may keep its thread.
func newLargeNode(t *testing.T) *largeNode {
	testbed.Linux.Require(t)
	runtime.LockOSThread() // and never unlocked: the thread, in a namespace of its own, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	n := &largeNode{t: t, o: fallback.DefaultOptions(), m: shapes.Many(3)}
	n.o.LocalhostNodePorts, n.o.Log = false, slog.New(slog.DiscardHandler)
	n.o.Hooks.Refused = func(dataplane.Refusal) {}
	n.o.Hooks.Hooks = n.o.Hooks.WithDefaults()
	n.restart()
	t.Cleanup(func() { n.w.close() })
	return n
}

// restart lets a new worker take over.
func (n *largeNode) restart() {
	n.t.Helper()
	if n.w != nil {
		n.w.close()
	}
	var err error
	n.in, n.status = dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4), fallback.FamilyStatus{}
	n.w, err = newWorker(testWorker(&n.o, n.in, &n.status), Settings{}, &netlink.Group{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.step(n.m.Everything())
}

func (n *largeNode) step(c k8s.Changes) {
	n.t.Helper()
	n.in.Put(n.m, c)
	n.w.TakeUpdates(n.w)
	n.w.NotUntil = time.Time{}
	n.w.Round(n.t.Context(), n.w)
	if !n.status.InStep || n.w.broken {
		n.t.Fatalf("not in step: %+v", n.status)
	}
	if d := sweepOnce(n.t, n.w); d != "" {
		n.t.Errorf("the table is not as the worker takes it to be: %s", d)
	}
}

// set changes Service ports; nil: delete them.
func (n *largeNode) set(ports map[k8s.PortName]*k8s.ServicePort) {
	n.t.Helper()
	for name, sp := range ports {
		if n.m.Ports[name] = sp; sp == nil {
			delete(n.m.Ports, name)
		}
	}
	n.step(k8s.Changes{Ports: ports})
}

// elements returns how many elements of a map have some text.
func (n *largeNode) elements(set, text string) int {
	n.t.Helper()
	out, err := exec.Command("nft", "list", "map", "ip", "nkp", set).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	return strings.Count(string(out), text)
}

// large returns a Service port with NodePorts at many addresses in 9.net.0.0/16: unlike others, each has slots of its own.
func large(name string, net byte, addresses, endpoints int) *k8s.ServicePort {
	sp := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: name}, Protocol: "TCP", Family: k8s.IPv4}}
	for i := range addresses {
		sp.Frontends = append(sp.Frontends, k8s.Frontend{
			Type: k8s.NodePort, Address: netip.AddrFrom4([4]byte{9, net, byte(i >> 8), byte(i)}), Port: 80, Policy: k8s.Cluster, WhenEmpty: k8s.Reject,
		})
	}
	for i := range endpoints {
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80)})
	}
	return sp
}

// A Service port whose elements do not fit into one transaction is refused, in the first sync, beside changes of others, and when
// it grows; what is installed of it stays. All others are served. Once it fits, it is served.
func TestTooLargeService(t *testing.T) {
	n := newLargeNode(t)
	refused := func(what string, want int) {
		t.Helper()
		if got := n.status.Refused; len(got) != want || want > 0 && !strings.Contains(got["ns/big (TCP)"], "too many endpoints for so many addresses") {
			t.Errorf("%s: refused: %+v", what, got)
		}
	}
	big, fits := large("big", 1, 450, 1000), large("big", 1, 2, 10)
	other := *n.m.Ports[shapes.Name(1)]
	other.ClusterEndpoints = other.ClusterEndpoints[:5]
	n.set(map[k8s.PortName]*k8s.ServicePort{big.Name: big, other.Name: &other})
	refused("beside another's change", 1)
	if got := n.elements("endpoints", shapes.VIP(1).String()+" . tcp"); got != 5 || n.elements("services", "9.1.") != 0 {
		t.Errorf("another Service port has %d endpoints of 5", got)
	}
	n.restart()
	refused("at the start", 1)
	n.set(map[k8s.PortName]*k8s.ServicePort{big.Name: fits})
	refused("once it fits", 0)
	if got := n.elements("services", "9.1."); got != 2 {
		t.Errorf("it is served at %d addresses", got)
	}
	n.set(map[k8s.PortName]*k8s.ServicePort{big.Name: big})
	refused("when it grows", 1)
	if got := n.elements("services", "9.1."); got != 2 {
		t.Errorf("it is served at %d addresses; want those that are installed", got)
	}
	n.set(map[k8s.PortName]*k8s.ServicePort{big.Name: nil})
	refused("when it goes", 0)
	if got := n.elements("services", "9.1."); got != 0 {
		t.Errorf("%d addresses are left", got)
	}
}

// A Service port that is too large is refused once when a table is replaced, also where that takes more than one transaction.
func TestTooLargeServiceInReplacement(t *testing.T) {
	n := newLargeNode(t)
	n.m = shapes.Many(200)
	big := large("big", 1, 450, 1000)
	big.Name.Namespace = "a" // comes first
	n.m.Ports[big.Name] = big
	refused := 0
	n.o.Hooks.Refused = func(dataplane.Refusal) { refused++ }
	defer func(before int) { maxReplace = before }(maxReplace)
	maxReplace = 20_000
	if out, err := exec.Command("nft", "add table ip nkp { flags dormant ; }").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n.restart(); refused != 1 || len(n.status.Refused) != 1 || n.elements("services", "goto cluster-ip") != 200 {
		t.Errorf("refused %d times: %+v", refused, n.status)
	}
}

// Service ports that are large together go at once, while nkp runs and while it does not, and no transaction is much larger than
// others: nf_tables takes 16 MiB at once, of elements of 28 bytes.
func TestLargeDeletion(t *testing.T) {
	const most = 40 // messages: maxBatch in those of 60 kB, and smaller ones
	n := newLargeNode(t)
	n.o.Hooks.Restored = func(r dataplane.Restore) {
		if r.Rules > most {
			t.Errorf("a transaction of %d changes", r.Rules)
		}
	}
	come, go_ := map[k8s.PortName]*k8s.ServicePort{}, map[k8s.PortName]*k8s.ServicePort{}
	for i := range 12 {
		sp := large(fmt.Sprint("s", i), byte(i), 100, 100)
		come[sp.Name], go_[sp.Name] = sp, nil
	}
	for _, restart := range []bool{false, true} {
		n.set(come)
		before := n.status.Elements
		if restart {
			for name := range go_ {
				delete(n.m.Ports, name)
			}
			n.restart()
		} else {
			n.set(go_)
		}
		if got := n.elements("endpoints", ". tcp ."); got != 3*shapes.Endpoints || n.elements("services", "9.") != 0 {
			t.Errorf("restart %v: %d slots of endpoints are left of %d elements; want %d", restart, got, before, 3*shapes.Endpoints)
		}
	}
}

// When the kernel's answer to one of the portions of a deletion is lost, what the others would have deleted is found by a read-back.
func TestDeletionCutShort(t *testing.T) {
	n := newLargeNode(t)
	sets := [2]map[k8s.PortName]*k8s.ServicePort{{}, {}}
	for i := range 4 {
		sp := large(fmt.Sprint("s", i), byte(i), 100, 100)
		sets[0][sp.Name], sets[1][sp.Name] = sp, nil
	}
	n.set(sets[0])
	n.o.Hooks.Restored = func(dataplane.Restore) {
		n.o.Hooks.Restored = nil
		testbed.Deafen(t, os.Getpid())
	}
	n.in.Put(n.m, k8s.Changes{Ports: sets[1]})
	n.w.TakeUpdates(n.w)
	n.w.NotUntil = time.Time{}
	n.w.Round(t.Context(), n.w)
	left := n.elements("endpoints", ". tcp .")
	if !n.w.broken || left <= 3*shapes.Endpoints || n.elements("services", "9.") > 0 {
		t.Fatalf("the deletion was not cut short: %d slots are left, %+v", left, n.status)
	}
	n.step(k8s.Changes{})
	if left := n.elements("endpoints", ". tcp ."); left != 3*shapes.Endpoints {
		t.Errorf("%d slots of endpoints are left; want %d", left, 3*shapes.Endpoints)
	}
}
