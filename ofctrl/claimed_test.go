//go:build linux

package ofctrl

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// A switch that claims success and does nothing is believed until it is asked what it holds: then all that is missing is found,
// and what it reports without holding it is to be deleted.
func TestClaimedSuccess(t *testing.T) {
	t.Parallel()
	var reported []byte // one flow of nkp's that nobody sent: ofp_flow_desc (OpenFlow 1.5.1 §7.3.5.2)
	reported = append(reported, 0, 40, 0, 0, 9, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0)
	reported = append(reported, byte(ownFilter.Cookie>>56), byte(ownFilter.Cookie>>48), byte(ownFilter.Cookie>>40), byte(ownFilter.Cookie>>32),
		byte(ownFilter.Cookie>>24), byte(ownFilter.Cookie>>16), byte(ownFilter.Cookie>>8), byte(ownFilter.Cookie))
	reported = append(reported, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0)
	target := serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
		switch {
		case m.typ() == typeBundleControl: // never committed
			f.Write(ofctrltest.BundleDone(ofctrltest.Message(m)))
		case m.typ() == typeMultipartRequest && u16(m.body()) == mpFlowDesc:
			f.Send(byte(typeMultipartReply), m.xid(), append([]byte{0, mpFlowDesc, 0, 0, 0, 0, 0, 0}, reported...)...)
		default:
			f.Answer(ofctrltest.Message(m))
		}
	}))
	c := dialFake(t, target, Options{})
	want := bigState(5)
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	d := flow.Diff(mustRead(t, c).State, want)
	if len(d.SetFlows) != len(want.Flows) || len(d.SetGroups) != len(want.Groups) || len(d.DelFlows) != 1 {
		t.Errorf("of %d flows and %d groups %d and %d are found missing, %d are found too many",
			len(want.Flows), len(want.Groups), len(d.SetFlows), len(d.SetGroups), len(d.DelFlows))
	}
}

// A switch that reports errors nobody asked for does not fill the log.
func TestStrayErrors(t *testing.T) {
	t.Parallel()
	const n = 1000
	target := serveFake(t, func(f *ofctrltest.Session) {
		for x := range uint32(n) {
			f.Write(message(typeError, x|1<<31, 0, 1, 0, 1))
		}
	})
	var log bytes.Buffer // written by the reader, which has ended when Close returns
	c := dialFake(t, target, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	awaitEnd(t, c)
	c.Close()
	if lines := strings.Count(log.String(), "no request of ours"); lines < 2 || lines > 12 {
		t.Errorf("%d lines for %d errors:\n%.2000s", lines, n, log.String())
	}
}
