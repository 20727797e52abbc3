package bridge

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/bound"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What is deleted is deleted a second time, lookAgain later, by filters and by listings, and not a third time. A change between the two
// is dealt with at once, and a second time together with the first.
func TestStaleUDPTwice(t *testing.T) {
	bed := testbed.Start(t, testbed.Options{})
	db, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: bed.DB(), Bridge: bed.Bridge})
	must(t, err)
	defer db.Close()
	target, err := ofctrl.ParseTarget("unix:" + filepath.Join(bed.RunDir, bed.Bridge+".mgmt"))
	must(t, err)
	conn, err := ofctrl.Dial(t.Context(), target, ofctrl.Options{Bridge: bed.Bridge})
	must(t, err)
	defer conn.Close()
	filter := flow.CTFilter{Zone: 1001, IPProto: flow.ProtoUDP, Dst: netip.MustParseAddrPort("40.0.0.1:53")}
	for what, tc := range map[string]struct {
		first, then backlog
		want        []int // scans: the first, one for the change, the second
	}{
		"filters":    {backlog{filters: []flow.CTFilter{filter}}, backlog{filters: []flow.CTFilter{filter}}, []int{1, 2, 3}},
		"everything": {backlog{all: true}, backlog{all: true}, []int{2, 4, 6}}, // of both families each
		"both":       {backlog{filters: []flow.CTFilter{filter}}, backlog{all: true}, []int{1, 3, 5}},
	} {
		t.Run(what, func(t *testing.T) {
			if !bed.Since(3, 1) && !tc.first.all {
				t.Skip("Open vSwitch before 3.1 takes no filters")
			}
			scans := 0
			hooks := noHooks()
			hooks.Forgot = func(k8s.Family, int, time.Duration) { scans++ }
			p := New(Settings{Bridge: bed.Bridge, OVSDB: bed.DB(), Layout: pipeline.DefaultLayout(), LocalDelivery: DeliverAuto}, db, hooks, slog.New(slog.DiscardHandler))
			c, err := pipeline.NewCompiler(p.node.config())
			must(t, err)
			u := &p.stale
			run := func(want int) {
				t.Helper()
				u.pause = time.Time{}
				for range 2 { // the second time nothing is due
					u.run(t.Context(), conn, c)
				}
				if scans != want {
					t.Errorf("%d scans, want %d", scans, want)
				}
			}
			for i, b := range []backlog{tc.first, tc.then} {
				u.pending.add(b.all, b.filters)
				begun := time.Now()
				run(tc.want[i])
				if at, ok := u.next(); !ok || at.Before(begun.Add(lookAgain)) {
					t.Fatalf("after change %d, the second scan is at %v (%t), want %v after %v", i, at, ok, lookAgain, begun)
				}
				if n := len(u.again.filters); what == "filters" && n != i+1 {
					t.Errorf("after change %d, %d filters are sent again", i, n)
				}
				u.due = time.Now().Add(time.Hour) // however slow the test is
			}
			u.due = time.Now()
			run(tc.want[2])
			if at, ok := u.next(); ok {
				t.Errorf("another scan is due at %v", at)
			}
		})
	}
}

// The switch is asked for its connections up to a limit of each kind of listing, and beyond not at all: the error has both numbers.
func TestListingLimits(t *testing.T) {
	var connections, listings atomic.Int64
	db := controlled(t, func(command string) string {
		if command == "dpctl/ct-get-nconns" {
			return fmt.Sprint(connections.Load())
		}
		listings.Add(1)
		return ""
	})
	p := New(Settings{OVSDB: db, Layout: pipeline.DefaultLayout()}, &ovsdb.Client{}, noHooks(), slog.New(slog.DiscardHandler))
	none := func(*dpctl.Connection) bool { return false }
	for what, tc := range map[string]struct {
		most int64
		list func() error
	}{
		"to delete stale ones": {1_000_000, func() error { return p.stale.deleteBySwitch(t.Context(), nil, 1001, none, nil) }},
		"to show them":         {100_000, func() error { return p.Connections(t.Context(), func(*dpctl.Connection) error { return nil }) }},
	} {
		for _, n := range []int64{tc.most, tc.most + 1} {
			connections.Store(n)
			before, fits := listings.Load(), n == tc.most
			err := tc.list()
			said := err != nil && strings.Contains(err.Error(), fmt.Sprint(n)) && strings.Contains(err.Error(), fmt.Sprint(tc.most))
			if fits != (err == nil) || fits == said || fits != (listings.Load() > before) {
				t.Errorf("%s, of %d: %d listings, error %v", what, n, listings.Load()-before, err)
			}
		}
	}
}

// controlled returns the database of a switch whose control socket answers by answer (JSON-RPC).
func controlled(t *testing.T, answer func(command string) string) (database string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte("1\n"), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "ovs-vswitchd.1.ctl"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var ask struct{ Method string }
			_ = json.NewDecoder(conn).Decode(&ask)
			_ = json.NewEncoder(conn).Encode(map[string]any{"id": 0, "result": answer(ask.Method), "error": nil})
			_ = conn.Close()
		}
	}()
	return "unix:" + filepath.Join(dir, "db.sock")
}

// Of ports whose MAC in the database is wrong, 5 are named, and the others counted.
func TestContradictionsAreBounded(t *testing.T) {
	bound.Check(t, "ports", 5, func(n int) []string {
		table, sw := " port  VLAN  MAC                Age\n", &ovsdb.Switch{}
		for i := range n {
			table += fmt.Sprintf("%5d     0  02:00:00:00:01:%02x    1\n", i+1, i)
			sw.Ports = append(sw.Ports, ovsdb.Port{OFPort: uint32(i + 1), MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, IPs: []netip.Addr{{}}})
		}
		set := Settings{OVSDB: controlled(t, func(string) string { return table })}
		var notes portNotes
		set.contradictions(t.Context(), sw, &notes)
		return notes.warnings()
	})
}
