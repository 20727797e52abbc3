//go:build linux

package ofctrl

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// TestConcurrent commits, reads back, counts and sends packets from many goroutines over one connection.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{OnPacketIn: func(*PacketIn) {}})
	want := bigState(200)
	all := flow.Diff(flow.NewState(), want)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := i * 25; k < i*25+25; k++ {
				d := &flow.Delta{SetGroups: all.SetGroups[k : k+1]}
				for _, f := range all.SetFlows {
					if f.Actions[1] == flow.Action(flow.ToGroup{ID: d.SetGroups[0].ID}) {
						d.SetFlows = append(d.SetFlows, f)
					}
				}
				if _, err := c.Commit(t.Context(), d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			for range 10 {
				if _, err := c.ReadBack(t.Context(), ownFilter); err != nil {
					t.Error(err)
				}
				if _, err := c.FlowCount(t.Context(), 0, 0); err != nil {
					t.Error(err)
				}
				frame := udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x")
				if err := c.PacketOut(t.Context(), 1, frame, flow.ToController{MaxLen: 128}); err != nil {
					t.Error(err)
				}
				bad := &flow.Delta{SetFlows: []*flow.Flow{fl(1, 1, flow.Match{}, flow.DecTTL{})}}
				var tx *TxError
				if _, err := c.Commit(t.Context(), bad); !errors.As(err, &tx) || len(tx.Rejected) != 1 || tx.Rejected[0].Object != bad.SetFlows[0] {
					t.Errorf("%+v", err)
				}
			}
		})
	}
	wg.Wait()
	wantSame(t, mustRead(t, c).State, want)
}

// TestOtherTables has flows of the state and of others in and outside the filter's tables.
func TestOtherTables(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	f := ownFilter
	f.Cookie, f.CookieMask = 0x6e6b<<48, 0xffff<<48
	for table := range 60 {
		b.ofctl("add-flow", fmt.Sprintf("cookie=0x6e6b00000000%04x,table=%d,actions=drop", table, table))
		if table%2 == 0 {
			b.ofctl("add-flow", fmt.Sprintf("cookie=0x6e6b80000000%04x,table=%d,priority=7,actions=drop", table, table))
		}
		b.ofctl("add-flow", fmt.Sprintf("cookie=0x77,table=%d,priority=8,actions=drop", table))
	}
	s, err := c.ReadBack(t.Context(), f)
	if err != nil || len(s.State.Flows) != 90 || len(s.Foreign) != len(f.Tables) {
		t.Errorf("%d flows, %d foreign; %v", len(s.State.Flows), len(s.Foreign), err)
	}
	f.Tables = nil
	s, err = c.ReadBack(t.Context(), f)
	if err != nil || len(s.State.Flows) != 90 || len(s.Foreign) != 0 {
		t.Errorf("without tables: %d flows, %d foreign; %v", len(s.State.Flows), len(s.Foreign), err)
	}
}

// TestXids has the transaction ids wrap.
func TestXids(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{})
	c.mu.Lock()
	c.nextXid = 0xffffffff - 300
	c.mu.Unlock()
	want := bigState(50)
	for range 3 {
		mustCommit(t, c, flow.Diff(flow.NewState(), want))
		wantSame(t, mustRead(t, c).State, want)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nextXid > 10000 || len(c.calls) != 0 {
		t.Errorf("next is %#x, %d calls are open", c.nextXid, len(c.calls))
	}
}

func TestTracer(t *testing.T) {
	t.Setenv("NKP_DEBUG", "")
	if tr := newTracer(Target{}); tr.w != nil {
		t.Error("traces unasked")
	}
	t.Setenv("NKP_DEBUG", "other,openflow-hex")
	tr := newTracer(Target{Network: "unix", Address: "/x"})
	if tr.w == nil || !tr.hex {
		t.Error("does not trace")
	}
	var out bytes.Buffer
	tr.w = &out
	b := message(typeBarrierRequest, 5)
	b = append(b, message(typeError, 6, 0, 5, 0, 1)...)
	tr.stream(">", append(b, 6, 0, 0))
	for _, want := range []string{"unix:/x > BARRIER_REQUEST xid=0x5 len=8", "ERROR OFPFMFC_TABLE_FULL xid=0x6", "0614000800000005"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	f := fl(1, 5, tcpTo("10.0.0.1", 80), flow.Output{Port: 1})
	refused := Rejection{Op: OpSet, Object: f, Cause: &SwitchError{Type: 5, Code: 1}}
	one := &TxError{Stage: StageBundle, Rejected: []Rejection{refused}}
	many := &TxError{Stage: StageBundle, Rejected: []Rejection{refused, refused}, More: 3}
	after := &TxError{Stage: StageAfter, Cause: ErrSilent}
	for got, want := range map[string]string{
		one.Error():                   "nothing installed: set flow " + f.String() + ": OFPFMFC_TABLE_FULL",
		many.Error():                  "nothing installed: 5 objects refused, first: set flow " + f.String() + ": OFPFMFC_TABLE_FULL",
		after.Error():                 "installed, but afterwards: switch is silent",
		reason(0xffff, 43, vendorNX):  "NXBMC_CT_DATAPATH_SUPPORT",
		reason(0xffff, 999, vendorNX): "Open vSwitch error 999",
		reason(0xffff, 1, 0x4f4e4600): "experimenter 0x4f4e4600 error 1",
		reason(99, 3, 0):              "error type 99 code 3",
		reason(1, 18, 0):              "OFPBRC_UNKNOWN",
		reason(17, 13, 0):             "OFPBFC_MSG_FAILED",
		reason(12, 1, 0):              "OFPMMFC_METER_EXISTS",
		reason(0, 0, 0):               "OFPHFC_INCOMPATIBLE",
		reason(0, 1, 0):               "OFPHFC_EPERM",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !errors.Is(after, ErrSilent) || !after.Installed() || one.Installed() {
		t.Error("errors.Is or Installed")
	}
	if s := fmt.Sprintf("%+v", many); strings.Count(s, "\n") != 3 || !strings.Contains(s, "3 more") {
		t.Errorf("%s", s)
	}
}
