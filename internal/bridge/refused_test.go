//go:build linux

package bridge

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A switch that refuses the meter gets a pipeline without one; nothing has to wait for that.
func TestRefusedMeter(t *testing.T) {
	bed := testbed.Start(t, testbed.Options{})
	db, err := ovsdb.Connect(context.Background(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	set := Settings{Bridge: bed.Bridge, Layout: pipeline.DefaultLayout(), LocalDelivery: DeliverAuto}
	p := New(set, db, Hooks{}, slog.New(slog.DiscardHandler))
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
	if metered() != 2 {
		t.Fatalf("a meter and one flow through it are expected, got %d", metered())
	}
	a.noteRefused([]ofctrl.Rejection{{Op: ofctrl.OpSet, Object: flow.Meter{ID: set.Layout.MeterID}, Cause: errors.New("OFPMMFC_OUT_OF_METERS")}})
	if metered() != 0 || a.refused.Len() != 0 || len(p.node.warnings) == 0 {
		t.Errorf("after the refusal: %d meters and flows, %d waiting, warnings %q", metered(), a.refused.Len(), p.node.warnings)
	}
	a.noteRefused([]ofctrl.Rejection{{Op: ofctrl.OpSet, Object: &flow.Flow{Cookie: 77}, Cause: errors.New("no")}})
	if !a.refused.Has(k8s.PortName{}) {
		t.Error("a refused flow of the fixed part does not wait")
	}
}

// A change is programmed when the switch has it, whatever it refuses of other Services: their retries may fall together with it.
func TestProgrammedBesideRefused(t *testing.T) {
	p := &New(Settings{}, nil, Hooks{}, slog.New(slog.DiscardHandler)).prog
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
