package bridge

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// An audit reads in parts, and what comes in meanwhile is programmed between two of them. It finds what others have changed, and takes no
// change of nkp's own for another's.
func TestChangesBetweenParts(t *testing.T) {
	const services = 2000
	bed := testbed.Start(t, testbed.Options{})
	db, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	must(t, err)
	defer db.Close()
	p := New(Settings{Bridge: bed.Bridge, Layout: pipeline.DefaultLayout(), LocalDelivery: DeliverAuto, Counters: true}, db, noHooks(), slog.New(slog.DiscardHandler))
	g, m := &p.prog, shapes.Many(services)
	p.node.model = k8s.Model{Node: m.Node, Detector: m.Detector}
	must(t, g.load(t.Context(), m.Ports))
	target, err := ofctrl.ParseTarget("unix:" + bed.Mgmt(bed.Bridge))
	must(t, err)
	conn, err := ofctrl.Dial(t.Context(), target, ofctrl.Options{Bridge: bed.Bridge})
	must(t, err)
	defer conn.Close()
	g.connected(t.Context(), conn)
	g.readBack(t.Context())

	rng, parts := rand.New(rand.NewPCG(41, 4)), 0
	change := func() {
		parts++
		switch i := rng.IntN(services); rng.IntN(3) {
		case 0:
			p.in.Put(m, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{shapes.Name(i): nil}})
		case 1:
			p.in.Put(m, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{shapes.Name(i): m.Ports[shapes.Name(i)]}})
		default:
			p.in.Put(m, shapes.Replace(m, i, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80)))
		}
		if p.takeWaiting(t.Context()); !g.inStep() || !p.in.Idle() {
			t.Fatal("a change that came between two parts is not in force before the next")
		}
	}
	audit := func() {
		audits := g.stats.Audits
		g.audit(t.Context(), change)
		if g.conn != conn || g.stats.Audits != audits+1 {
			t.Fatalf("%d audits, %+v", g.stats.Audits-audits, g.stats)
		}
	}
	// 2,000 flows of frontends, 6,000 of counters, 2,000 groups.
	if audit(); parts < 10 || g.stats.Repairs > 0 {
		t.Errorf("an audit in %d parts, %d repairs", parts, g.stats.Repairs)
	}
	if n, err := conn.FlowCount(t.Context(), 0, 0, 1); err != nil || n.Flows < services/2 {
		t.Errorf("%d flows of frontends: %v", n.Flows, err)
	}

	// A flow that takes the place of one of nkp's leaves the number of flows in its table the same.
	g.checkCount(t.Context())
	own := g.compiler.State()
	for k := range own.Flows {
		if audits := g.stats.Audits; k.Table == 3 && k.Match.IPProto == 1 {
			place := fmt.Sprintf("table=3,priority=%d,", k.Priority) + k.Match.String()
			if _, err := bed.Ofctl("add-flow", bed.Bridge, place+",actions=drop"); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if g.checkCount(t.Context()); g.stats.Audits > audits {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			if g.stats.Audits == audits {
				t.Errorf("a flow in the place of %s is not noticed", place)
			}
			if _, err := bed.Ofctl("--strict", "del-flows", bed.Bridge, place); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	g.refused.ForgetIf(func(k8s.PortName) bool { return true })
	g.readBack(t.Context())
	g.stats.Repairs = 0

	for i, command := range [][]string{
		{"del-flows", bed.Bridge, "table=3,icmp"},
		{"add-flow", bed.Bridge, "cookie=0x6e6b700100000000,table=1,priority=5,tcp,actions=drop"},
		{"del-flows", bed.Bridge, "table=16"},
		{"del-groups", bed.Bridge},
	} {
		if _, err := bed.Ofctl(command...); err != nil {
			t.Fatal(err)
		}
		if audit(); g.stats.Repairs != i+1 {
			t.Errorf("%q: %d repairs, want %d", command, g.stats.Repairs, i+1)
		}
		g.stats.Repairs = i + 1
		if audit(); g.stats.Repairs != i+1 {
			t.Errorf("%q: a repair more", command)
		}
		g.stats.Repairs = i + 1
	}
}
