//go:build linux

package ofctrl

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// shared is the switch of the tests that do not stop or kill it; each takes a bridge of its own.
var shared struct {
	once sync.Once
	bed  *testbed.Bed
	err  error
	next atomic.Int32
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.bed != nil {
		if err := shared.bed.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// bridge is a bridge of the shared switch.
type bridge struct {
	t    testing.TB
	bed  *testbed.Bed
	name string
}

func newBridge(t testing.TB) *bridge {
	t.Helper()
	testbed.Require(t)
	shared.once.Do(func() { shared.bed, shared.err = testbed.New(context.Background(), testbed.Options{}) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	b := &bridge{t: t, bed: shared.bed, name: fmt.Sprintf("t%d", shared.next.Add(1))}
	must(t, b.bed.AddBridge(b.name))
	t.Cleanup(func() { b.bed.Vsctl("del-br", b.name) })
	return b
}

func (b *bridge) target() Target { return Target{Network: "unix", Address: b.bed.Mgmt(b.name)} }

func (b *bridge) dial(o Options) *Conn {
	b.t.Helper()
	var c *Conn
	wait.NoError(b.t, "the bridge's socket", func() (err error) { // it appears a moment after ovs-vsctl returns
		c, err = Dial(b.t.Context(), b.target(), patient(o))
		return err
	})
	b.t.Cleanup(func() { c.Close() })
	return c
}

// addFlows adds flows in the form of ovs-ofctl.
func (b *bridge) addFlows(flows ...string) {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), "flows")
	must(b.t, os.WriteFile(file, []byte(strings.Join(flows, "\n")), 0o600))
	b.ofctl("add-flows", "--bundle", file)
}

// ofctl runs ovs-ofctl -O OpenFlow15 COMMAND BRIDGE ARGS.
func (b *bridge) ofctl(command string, args ...string) string {
	b.t.Helper()
	out, err := b.bed.Ofctl(append([]string{"-O", "OpenFlow15", command, b.bed.Mgmt(b.name)}, args...)...)
	if err != nil {
		b.t.Fatalf("ovs-ofctl %s: %v", command, err)
	}
	return out
}

// The numbers that the tests use as their own.
const (
	ownCookie   = 0x6e6b_0000_0000_0000
	ownMask     = 0xffff_0000_0000_0000
	learnCookie = 0x6c6b_0000_0000_0000
	groupLo     = 0x100000
	groupHi     = 0x4fffff
)

var ownFilter = Filter{
	Cookie: ownCookie, CookieMask: ownMask,
	Tables: []uint8{0, 1, 2, 10, 30}, GroupLo: groupLo, GroupHi: groupHi, IsMeter: func(id uint32) bool { return id <= 2 },
}

func key(table uint8, priority uint16, m flow.Match) flow.Key {
	return flow.Key{Table: table, Priority: priority, Match: m}
}

func fl(table uint8, priority uint16, m flow.Match, acts ...flow.Action) *flow.Flow {
	return &flow.Flow{Key: key(table, priority, m), Cookie: ownCookie | 1, Actions: acts}
}

func tcpTo(addr string, port uint16) flow.Match {
	a := netip.MustParseAddr(addr)
	m := flow.Match{EthType: flow.EthIPv4, IPProto: flow.ProtoTCP, Dst: netip.PrefixFrom(a, a.BitLen()), DstPort: port}
	if a.Is6() {
		m.EthType = flow.EthIPv6
	}
	return m
}

func dnat(addr string, port uint16) flow.CT {
	return flow.CT{
		Commit: true, Zone: 1001, Table: 2, MarkFromReg1: true,
		NAT: flow.NAT{Kind: flow.NATDst, Addr: netip.MustParseAddr(addr), PortMin: port},
	}
}

// state collects flows, groups and meters.
func state(t testing.TB, objects ...any) *flow.State {
	t.Helper()
	s := flow.NewState()
	for _, o := range objects {
		switch o := o.(type) {
		case *flow.Flow:
			if s.Flows[o.Key] != nil {
				t.Fatalf("two flows with the key of %v", o)
			}
			s.Flows[o.Key] = o
		case *flow.Group:
			s.Groups[o.ID] = o
		case flow.Meter:
			s.Meters[o.ID] = o
		}
	}
	return s
}

func mustCommit(t testing.TB, c *Conn, d *flow.Delta) Result {
	t.Helper()
	res, err := c.Commit(t.Context(), d)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return res
}

func mustRead(t testing.TB, c *Conn) *Snapshot {
	t.Helper()
	s, err := c.ReadBack(t.Context(), ownFilter)
	must(t, err)
	return s
}

// wantSame fails if the switch does not hold exactly what is wanted.
func wantSame(t testing.TB, have, want *flow.State) {
	t.Helper()
	if d := flow.Diff(have, want); !d.Empty() {
		var s strings.Builder
		d.WriteTo(&s)
		t.Fatalf("read back differs (+ wanted, - held):\n%s", clip(s.String()))
	}
}

func clip(s string) string {
	if len(s) > 4000 {
		return s[:4000] + "..."
	}
	return s
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
