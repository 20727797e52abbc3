package bridge

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// Questions about one Service, and those that come every few seconds, name whole cookies and single groups. For a part of a cookie
// Open vSwitch visits all flows: with as many as the limits of cost allow that takes seconds, in which it serves nobody.
func TestQuestionsVisitNoOthers(t *testing.T) {
	var wide atomic.Int32 // questions about flows by a part of a cookie, or about all groups
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
			if b := m.Body(); m.Type() == ofctrltest.MultipartRequest {
				switch binary.BigEndian.Uint16(b) {
				case ofctrltest.FlowDesc, ofctrltest.Aggregate:
					if binary.BigEndian.Uint64(b[8+24:]) != ^uint64(0) {
						wide.Add(1)
					}
				case ofctrltest.GroupStats, ofctrltest.GroupDesc:
					if binary.BigEndian.Uint32(b[8:]) > 0xffffff00 {
						wide.Add(1)
					}
				}
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

	p := New(Settings{Layout: pipeline.DefaultLayout()}, nil, noHooks(), slog.New(slog.DiscardHandler))
	g := &p.prog
	if g.compiler, err = pipeline.NewCompiler(pipeline.Config{Layout: g.set.Layout, NoMeter: true}); err != nil {
		t.Fatal(err)
	}
	name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: "s"}, Protocol: "TCP", Family: k8s.IPv4}
	sp := &k8s.ServicePort{Name: name, Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.MustParseAddr("10.0.0.1"), Port: 80}}}
	g.compiler.Update(map[k8s.PortName]*k8s.ServicePort{name: sp})
	all := flow.Diff(flow.NewState(), g.compiler.State())
	all.SetMeters = nil
	if _, err := conn.Commit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	g.conn, g.pending, g.permitted, g.flows = conn, &flow.Delta{}, true, g.compiler.Flows()

	own, _ := g.compiler.Objects(name)
	id, _ := g.set.Layout.PortOfCookie(own[0].Cookie)

	g.checkCount(t.Context())
	if n := wide.Swap(0); n == 0 {
		t.Errorf("the first count asks %d times for all flows", n)
	}
	for what, ask := range map[string]func() error{
		"the next count": func() error { g.checkCount(t.Context()); return nil },
		"drops":          func() error { return p.countDrops(t.Context()) },
		"one Service": func() error {
			st, err := ReadInstalled(t.Context(), conn, g.set.Layout, id)
			if err == nil && len(st.Flows) == 0 {
				err = errNoFlows
			}
			return err
		},
	} {
		if err := ask(); err != nil || g.conn == nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := wide.Swap(0); n != 0 {
			t.Errorf("%s: %d questions make the switch visit all flows or groups", what, n)
		}
	}

	other := &flow.Flow{Cookie: 5}
	other.Table, other.Match = g.set.Layout.FrontendTable(), flow.Match{EthType: flow.EthIPv4}
	if _, err := conn.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{other}}); err != nil {
		t.Fatal(err)
	}
	if g.checkCount(t.Context()); wide.Load() == 0 {
		t.Errorf("after a flow of another owner, the flows are counted %d times", wide.Load())
	}
}

// Flows that drop are read in turns if they are many, and each gets its turn.
func TestDropsTurn(t *testing.T) {
	defer func(n int) { maxDrops = n }(maxDrops)
	maxDrops = 10
	p := &Plane{}
	number, seen := map[uint64]int{}, map[uint64]bool{}
	for i := range 20 {
		number[uint64(i)] = 3
	}
	number[7] = 50 // more than a turn has room for
	for range 10 {
		sum := 0
		turn := p.dropsTurn(number)
		for _, cookie := range turn {
			seen[cookie] = true
			sum += number[cookie]
		}
		if sum > maxDrops && len(turn) > 1 {
			t.Errorf("a turn reads %d flows of %d cookies", sum, len(turn))
		}
	}
	if len(seen) != len(number) {
		t.Errorf("%d of %d had a turn", len(seen), len(number))
	}
}
