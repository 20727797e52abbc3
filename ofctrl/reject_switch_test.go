//go:build linux

package ofctrl

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/ofctrl/reject"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// TestRejectOnSwitch refuses real connections of a pod and of a client outside, by packet-in and packet-out; their kernels judge
// the answers.
func TestRejectOnSwitch(t *testing.T) {
	t.Parallel()
	testbed.Require(t)
	bed := testbed.Start(t, testbed.Options{})
	pod, err := bed.AddPod(testbed.PodSpec{})
	must(t, err)
	var answered atomic.Int32
	conns := make(chan *Conn, 1)
	b := &bridge{t: t, bed: bed, name: bed.Bridge}
	c := b.dial(Options{OnPacketIn: func(p *PacketIn) {
		out, err := reject.Answer(p.Data)
		if err != nil {
			t.Errorf("%x: %v", p.Data, err)
			return
		}
		c := <-conns
		conns <- c
		if err := c.PacketOut(t.Context(), p.InPort, out, flow.Output{Port: flow.PortInPort}); err != nil {
			t.Error(err)
		}
		answered.Add(1)
	}})
	conns <- c
	s := state(t, fl(0, 1, flow.Match{}, flow.Output{Port: flow.PortNormal}))
	for _, addr := range []string{"40.0.0.9", "fd00:40::9"} {
		m := tcpTo(addr, 0)
		m.IPProto = 0
		f := fl(0, 10, m, flow.ToController{MaxLen: 0xffff})
		s.Flows[f.Key] = f
	}
	mustCommit(t, c, flow.Diff(flow.NewState(), s))
	for _, from := range []*testbed.Host{pod.Host, bed.External} {
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			for _, addr := range []string{"40.0.0.9:80", "[fd00:40::9]:80"} {
				_, err := from.Ask(t.Context(), proto, addr)
				want := testbed.ErrRefused
				if proto == "sctp" && errors.Is(err, testbed.ErrUnreachable) {
					want = testbed.ErrUnreachable
				}
				if !errors.Is(err, want) {
					t.Errorf("%s %s from %s: %v", proto, addr, from.Name, err)
				}
			}
		}
	}
	t.Logf("%d packets answered", answered.Load())
}
