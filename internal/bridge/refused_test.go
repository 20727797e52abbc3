//go:build linux

package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A switch that refuses a meter on pings gets a pipeline that answers none, one that refuses the meter of a pod a pipeline with one meter
// for all, one that refuses that too a pipeline without; nothing has to wait for that.
func TestRefusedMeter(t *testing.T) {
	bed := testbed.Start(t, testbed.Options{})
	db, err := ovsdb.Connect(context.Background(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	must(t, err)
	defer db.Close()
	set := Settings{AnswerPing: true, Bridge: bed.Bridge, Layout: pipeline.DefaultLayout(), LocalDelivery: DeliverAuto, Ports: map[netip.Addr]PortOverride{netip.MustParseAddr("10.0.0.11"): {OFPort: 11}}}
	p := New(set, db, noHooks(), slog.New(slog.DiscardHandler))
	a := &p.prog
	if a.compiler, err = pipeline.NewCompiler(p.node.config()); err != nil {
		t.Fatal(err)
	}
	metered := func() (n int) {
		for _, f := range a.compiler.State().Flows {
			for _, act := range f.Actions {
				if _, ok := act.(flow.ToMeter); ok {
					n++
				}
			}
		}
		return n + len(a.compiler.State().Meters)
	}
	if metered() != 10 { // flows for pings are two, one of each family
		t.Fatalf("four meters and a flow through each are expected, got %d", metered())
	}
	for _, step := range []struct {
		id   uint32
		left int
	}{{0x6e6bff01, 4}, {0x6e6b000b, 2}, {set.Layout.MeterID, 0}, {0x6e6b000b, 0}} {
		a.backOff([]ofctrl.Rejection{{Op: ofctrl.OpSet, Object: flow.Meter{ID: step.id}, Cause: errors.New("OFPMMFC_OUT_OF_METERS")}})
		if metered() != step.left || a.refused.Len() != 0 || len(p.node.warnings) == 0 {
			t.Errorf("meter %#x refused: %d meters and flows, want %d, %d waiting, warnings %q", step.id, metered(), step.left, a.refused.Len(), p.node.warnings)
		}
	}
	target, err := ofctrl.ParseTarget("unix:" + filepath.Join(bed.RunDir, bed.Bridge+".mgmt"))
	must(t, err)
	conn, err := ofctrl.Dial(t.Context(), target, ofctrl.Options{Bridge: bed.Bridge})
	must(t, err)
	defer conn.Close()
	if a.connected(t.Context(), conn); metered() != 10 {
		t.Errorf("after another connection there are %d meters and flows, want them again", metered())
	}
	a.backOff([]ofctrl.Rejection{{Op: ofctrl.OpSet, Object: &flow.Flow{Cookie: 77}, Cause: errors.New("no")}})
	if !a.refused.Has(k8s.PortName{}) {
		t.Error("a refused flow of the fixed part does not wait")
	}
}

// A refused Service port that comes again and changes no flow, such as one that is Partial no more, is retried at once.
func TestRefusedPortComesAgain(t *testing.T) {
	bed := testbed.Start(t, testbed.Options{})
	db, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	must(t, err)
	defer db.Close()
	g := &New(Settings{Bridge: bed.Bridge, Layout: pipeline.DefaultLayout(), LocalDelivery: DeliverAuto}, db, noHooks(), slog.New(slog.DiscardHandler)).prog
	g.compiler, err = pipeline.NewCompiler(g.node.config())
	must(t, err)
	target, err := ofctrl.ParseTarget("unix:" + filepath.Join(bed.RunDir, bed.Bridge+".mgmt"))
	must(t, err)
	g.conn, err = ofctrl.Dial(t.Context(), target, ofctrl.Options{Bridge: bed.Bridge})
	must(t, err)
	defer g.conn.Close()

	ports := shapes.Many(1).Ports
	g.pending = g.compiler.Update(ports)
	for n := range ports {
		g.refused.Refuse(n, dataplane.Refusal{Port: n}, time.Now())
	}
	g.update(t.Context(), ports, time.Now())
	if !g.pending.Empty() || !g.installed(ports) {
		t.Errorf("%d flows and %d groups are left to send", len(g.pending.SetFlows), len(g.pending.SetGroups))
	}
}

// A change is programmed when the switch has it, whatever it refuses of other Services: their retries may fall together with it.
func TestProgrammedBesideRefused(t *testing.T) {
	p := &New(Settings{}, nil, noHooks(), slog.New(slog.DiscardHandler)).prog
	mine, other := k8s.PortName{Port: "mine"}, k8s.PortName{Port: "other"}
	changed := map[k8s.PortName]*k8s.ServicePort{mine: nil}
	p.pending = &flow.Delta{}
	p.refused.Refuse(other, dataplane.Refusal{Port: other}, time.Now())
	if !p.installed(changed) {
		t.Error("another Service that waits keeps a change from being counted")
	}
	p.refused.Refuse(mine, dataplane.Refusal{Port: mine}, time.Now())
	if p.installed(changed) {
		t.Error("a change that the switch refused counts as programmed")
	}
	p.refused.Forget(mine)
	p.unsent = true
	if p.installed(changed) {
		t.Error("a change counts as programmed though its transaction failed")
	}
}

// Deletions of unwanted flows that the switch refuses are tried again like any other change, and are not lost.
func TestRefusedSurplus(t *testing.T) {
	var allowed atomic.Bool
	path := filepath.Join(t.TempDir(), "s")
	sw, err := ofctrltest.Listen(path, ofctrltest.Options{Serve: func(s *ofctrltest.Session) {
		if s.Handshake() != nil {
			return
		}
		for {
			m, err := s.Read()
			if err != nil {
				return
			}
			if m.Type() == ofctrltest.BundleAdd && m.Body()[8+1] == ofctrltest.FlowMod && m.Body()[8+8+17] == 4 && // OFPFC_DELETE_STRICT
				!allowed.Load() {
				s.Send(ofctrltest.Error, m.XID(), 0, 5, 0, 4) // OFPET_FLOW_MOD_FAILED, OFPFMFC_EPERM (OpenFlow 1.5.1 §7.5.4.6)
				continue
			}
			if s.Answer(m) != nil {
				return
			}
		}
	}})
	must(t, err)
	defer sw.Close()
	conn, err := ofctrl.Dial(t.Context(), ofctrl.Target{Network: "unix", Address: path}, ofctrl.Options{})
	must(t, err)
	defer conn.Close()

	g := &New(Settings{Layout: pipeline.DefaultLayout()}, nil, noHooks(), slog.New(slog.DiscardHandler)).prog
	if g.compiler, err = pipeline.NewCompiler(pipeline.Config{Layout: g.set.Layout}); err != nil {
		t.Fatal(err)
	}
	g.conn, g.pending = conn, &flow.Delta{}
	unwanted := flow.NewState()
	for i := range 3 {
		f := &flow.Flow{Cookie: g.set.Filter().Cookie | 77}
		f.Table, f.Priority, f.Match = 1, uint16(1000+i), flow.Match{EthType: flow.EthIPv4}
		unwanted.Flows[f.Key] = f
		g.surplus[f.Key] = f
	}
	if _, err := conn.Commit(t.Context(), flow.Diff(flow.NewState(), unwanted)); err != nil {
		t.Fatal(err)
	}
	g.deleteSurplus(t.Context())
	if n, _ := sw.Held(); n != 3 || g.refused.Len() != 1 || g.pending.Empty() {
		t.Errorf("%d flows on the switch, %d owners in backoff, nothing pending: %t; want 3, 1, false", n, g.refused.Len(), g.pending.Empty())
	}
	allowed.Store(true)
	time.Sleep(time.Until(g.refused.Next()))
	g.sync(t.Context())
	if n, _ := sw.Held(); n != 0 || g.refused.Len() != 0 || !g.pending.Empty() {
		t.Errorf("%d flows on the switch, %d owners in backoff, nothing pending: %t; want 0, 0, true", n, g.refused.Len(), g.pending.Empty())
	}
}
