package bridge

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// listen makes a switch that does what a switch does, and calls committed after each bundle.
func listen(t *testing.T, committed func(*ofctrltest.Switch)) (*ofctrltest.Switch, *ofctrl.Conn) {
	path := filepath.Join(t.TempDir(), "s")
	var sw *ofctrltest.Switch
	sw, err := ofctrltest.Listen(path, ofctrltest.Options{Serve: func(s *ofctrltest.Session) {
		if s.Handshake() != nil {
			return
		}
		for {
			m, err := s.Read()
			if err != nil || s.Answer(m) != nil {
				return
			}
			if m.Type() == ofctrltest.BundleControl && binary.BigEndian.Uint16(m.Body()[4:]) == 4 {
				committed(sw)
			}
		}
	}})
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	conn, err := ofctrl.Dial(t.Context(), ofctrl.Target{Network: "unix", Address: path}, ofctrl.Options{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return sw, conn
}

// strays returns n flows under nkp's cookie with an id, at places where nkp has none.
func strays(n int, layout pipeline.Layout, id uint64) *flow.Delta {
	d := &flow.Delta{}
	cookie, _ := layout.StaticCookies()
	for i := range n {
		f := &flow.Flow{Cookie: cookie | id}
		f.Table, f.Priority = layout.FrontendTable(), 7
		f.Match = flow.Match{EthType: flow.EthIPv4, Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{240, byte(i >> 16), byte(i >> 8), byte(i)}), 32)}
		d.SetFlows = append(d.SetFlows, f)
	}
	return d
}

// Another program that adds more flows under nkp's cookie than are kept, again and again, does not make nkp delete its own by their
// cookie, nor keep changes back: each count of flows leads to another read-back.
func TestTooManyAgainAndAgain(t *testing.T) {
	defer func(n int) { pipeline.MaxKept = n }(pipeline.MaxKept)
	pipeline.MaxKept = 1000
	layout := pipeline.DefaultLayout()
	from, conn := listen(t, func(*ofctrltest.Switch) {})
	_, err := conn.Commit(t.Context(), strays(pipeline.MaxKept+2000, layout, 0))
	must(t, err)
	junk := from.Dump()

	adds := true
	sw, conn := listen(t, func(sw *ofctrltest.Switch) {
		if adds {
			_ = sw.Load(junk)
		}
	})
	must(t, sw.Load(junk))
	p := New(Settings{Layout: layout, AllowStateful: true}, nil, noHooks(), slog.New(slog.DiscardHandler))
	g := &p.prog
	if g.compiler, err = pipeline.NewCompiler(pipeline.Config{Layout: layout, NoMeter: true}); err != nil {
		t.Fatal(err)
	}
	g.conn = conn
	for range 2 {
		g.readBack(t.Context())
		if g.pending != nil && g.left() > 0 { // as the loop does
			g.deleteSurplus(t.Context())
		}
		if n, _ := sw.Held(); g.conn == nil || n < len(junk)+g.compiler.Flows() {
			t.Fatalf("%d flows, %d wanted and %d of another: %v", n, g.compiler.Flows(), len(junk), g.stats)
		}
	}

	adds = false
	if g.checkCount(t.Context()); g.conn == nil || g.pending == nil {
		t.Fatalf("the count of flows leads to no read-back: %+v", g.stats)
	}
	if n, _ := sw.Held(); n != g.compiler.Flows() {
		t.Errorf("%d flows, want %d", n, g.compiler.Flows())
	}
	g.readBack(t.Context())
	adds = true
	must(t, sw.Load(junk))
	g.readBack(t.Context())
	for g.left() > 0 {
		g.deleteSurplus(t.Context())
	}
	if n, _ := sw.Held(); n < len(junk)+g.compiler.Flows() {
		t.Errorf("%d flows, %d wanted and %d of another", n, g.compiler.Flows(), len(junk))
	}
}

// Flows of ids that no Service port has, of which not all are kept, are shown by nkp diff, and an audit tells of their repair.
func TestGoneIsTold(t *testing.T) {
	defer func(n int) { pipeline.MaxKept = n }(pipeline.MaxKept)
	pipeline.MaxKept = 1000
	layout := pipeline.DefaultLayout()
	sw, conn := listen(t, func(*ofctrltest.Switch) {})
	p := New(Settings{Layout: layout, AllowStateful: true}, nil, noHooks(), slog.New(slog.DiscardHandler))
	g := &p.prog
	compiler := func() *pipeline.Compiler {
		c, err := pipeline.NewCompiler(pipeline.Config{Layout: layout, NoMeter: true})
		must(t, err)
		return c
	}
	g.compiler, g.conn = compiler(), conn
	g.readBack(t.Context())
	_, err := conn.Commit(t.Context(), strays(3000, layout, 5))
	must(t, err)

	shows := func(who string, d *flow.Delta, err error) {
		t.Helper()
		var b strings.Builder
		if err == nil {
			_, err = d.WriteTo(&b)
		}
		if err != nil || !strings.Contains(b.String(), "- cookie=0x6e6b700100000005/0x") {
			t.Errorf("%s shows %q: %v", who, b.String(), err)
		}
	}
	d, err := g.diff(t.Context())
	shows("the agent", d, err)
	c := compiler()
	d, err = g.set.compareOwn(t.Context(), conn, c, func(*ofctrl.Conn, map[uint8]int) flow.Others { return c.Config().Others })
	shows("another process", d, err)

	g.audit(t.Context(), func() {})
	if r := g.stats.LastRepair; g.stats.Repairs != 1 || !strings.Contains(fmt.Sprintf("%+v", r), "flows deleted 3000") {
		t.Errorf("%d repairs: %+v", g.stats.Repairs, r)
	}
	for g.left() > 0 {
		g.deleteSurplus(t.Context())
	}
	if n, _ := sw.Held(); n != g.compiler.Flows() {
		t.Errorf("%d flows, want %d", n, g.compiler.Flows())
	}
}
