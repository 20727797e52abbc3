//go:build linux

package semantics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// flowtable is what `nkp status -o json` says about a family's.
type flowtable struct {
	Devices, LeftOut int
	Error            string
}

// expectFlowtables waits until status answers, which it does a moment after rules that were there before are found in step, and until ok
// holds for both families.
func (c *cluster) expectFlowtables(t *testing.T, what string, ok func(flowtable) bool) (last flowtable) {
	t.Helper()
	wait.NoError(t, "flowtables: "+what, func() error {
		out, status := c.run(c.bin, "status", "-o", "json", "--socket", c.socket())
		var s struct {
			NFTables struct {
				Families []struct{ Flowtable flowtable }
			}
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil || status != 0 || len(s.NFTables.Families) != 2 {
			return fmt.Errorf("status ends with %d (%w): %s", status, err, tail(out, 2000))
		}
		for _, f := range s.NFTables.Families {
			if last = f.Flowtable; !ok(last) {
				return fmt.Errorf("status says %+v", last)
			}
		}
		return nil
	})
	return last
}

// onFlowtable runs a test in mode nftables, where nkp is to use a flowtable with some devices. has is false where the kernel has none:
// never in the emulated machine.
func onFlowtable(t *testing.T, devices string, before func(*cluster), test func(t *testing.T, c *cluster, has bool)) {
	t.Helper()
	t.Parallel()
	at := slices.IndexFunc(planes, func(p plane) bool { return p.name == "nftables" }) // the only plane that has one
	c := newCluster(t, planes[at], setup{nkpFlags: []string{"--nftables-flowtable-devices", devices}})
	if before != nil {
		before(c)
	}
	c.start()
	said := c.expectFlowtables(t, "devices, or why there are none", func(f flowtable) bool { return f.Devices > 0 || f.Error != "" })
	has := !strings.Contains(said.Error, "CONFIG_NF_FLOW_TABLE")
	if !has && testbed.DefaultDatapath() != testbed.UserDatapath {
		t.Fatalf("this kernel has flowtables; nkp says: %+v", said)
	}
	test(t, c, has)
}

// Established connections bypass what filters forwarded packets; new ones do not, and without the kernel's support none does. Without the
// flag, connections that were in the flowtable go on.
func TestFlowtable(t *testing.T) {
	onFlowtable(t, "*", nil, func(t *testing.T, c *cluster, has bool) {
		c.serve(service("web", clusterIP(1), nodePort(30001)), c.here)
		c.apply()
		var held []*testbed.Held
		for _, from := range []*testbed.Host{c.pod, c.External} {
			to := clusterIP(1).on(80)
			if from == c.External {
				to = of(c.Node).on(30001)
			}
			for _, a := range to.addresses() {
				k, err := from.Hold(c.ctx, a.String(), testbed.DialOptions{})
				must(t, err)
				must(t, k.Check())
				held = append(held, k)
			}
		}
		c.expectFlowtables(t, fmt.Sprintf("the node's devices: %v", has), func(f flowtable) bool {
			return has == (f.Devices >= 3) && has == (f.Error == "")
		})
		drops := c.dropForwarded(t)
		for _, a := range clusterIP(1).on(80).addresses() {
			o := testbed.AskOptions{Until: func(context.Context) error { return drops.another(t) }}
			if r, err := c.pod.AskWith(c.ctx, "tcp", a.String(), o); !errors.Is(err, testbed.ErrTimeout) {
				t.Errorf("a new connection to %s bypasses the rule: %v, %v", a, r, err)
			}
		}
		if has {
			for i, k := range held {
				if err := k.Check(); err != nil {
					t.Errorf("held connection %d does not bypass the rule: %v", i, err)
				}
			}
		} else if err := held[0].CheckUntil(func() error { return drops.another(t) }); !errors.Is(err, testbed.ErrTimeout) {
			t.Errorf("a held connection bypasses the rule without a flowtable: %v", err)
		}
		must(t, drops.undo())
		c.expect(t, probe{name: "without the rule", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)})
		must(t, c.proxy.Stop(syscall.SIGTERM))
		c.ownFlags = nil
		c.start()
		c.expectFlowtables(t, "none without the flag", func(f flowtable) bool { return f == flowtable{} })
		for i, k := range held {
			if err := k.Check(); has && err != nil {
				t.Errorf("held connection %d, without the flowtable: %v", i, err)
			}
		}
	})
}

// A UDP client whose connection is in the flowtable is served by another endpoint when its own goes.
func TestFlowtableStaleUDP(t *testing.T) {
	nightly.Only(t, "without the kernel's flowtables, which the emulated machine has, it is TestRow24UDPConnections")
	onFlowtable(t, "*", nil, func(t *testing.T, c *cluster, _ bool) {
		dns := c.serve(service("dns", clusterIP(1), protocol(v1.ProtocolUDP)), c.here)
		c.apply()
		clients := c.flows(t, c.pod, clusterIP(1).on(80))
		answered(t, "at first", clients, c.here, true)
		c.endpoints(dns, ready(c.here2)...)
		c.apply()
		answered(t, "the other endpoint", clients, c.here2, false)
		c.endpoints(dns, ready(c.here)...)
		c.apply()
		answered(t, "and back", clients, c.here, false)
	})
}

// A flowtable has 256 devices at most: those in it stay, further ones are counted and take the usual path.
func TestFlowtableIsBounded(t *testing.T) {
	more := func(c *cluster) {
		for i := range 150 {
			_, err := c.Exec(c.Node, "ip", "link", "add", "more"+strconv.Itoa(i), "type", "veth", "peer", "name", "peer"+strconv.Itoa(i))
			must(t, err)
		}
	}
	onFlowtable(t, "more*,peer*,nosuchdevice", more, func(t *testing.T, c *cluster, has bool) {
		c.serve(service("web", clusterIP(1)), c.here)
		c.apply()
		c.expect(t, probe{name: "served", from: c.pod, to: clusterIP(1).on(80), want: by(c.here)})
		expect := func(in, left int) {
			c.expectFlowtables(t, fmt.Sprintf("%d devices, %d left out", in, left), func(f flowtable) bool {
				return has && f.Devices == in && f.LeftOut == left || !has && f.Devices == 0
			})
		}
		expect(256, 44)
		for i := range 30 {
			_, err := c.Exec(c.Node, "ip", "link", "del", "more"+strconv.Itoa(i))
			must(t, err)
		}
		expect(240, 0)
	})
}

// dropper is a table of another owner that drops all forwarded packets.
type dropper struct {
	node  *testbed.Host
	table *nftables.Table
	chain *nftables.Chain
	seen  uint64 // packets that another has waited for
}

func (c *cluster) dropForwarded(t *testing.T) *dropper {
	t.Helper()
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "policy"}
	d := &dropper{c.Node, table, &nftables.Chain{Table: table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}, 0}
	must(t, d.do(func(conn *nftables.Conn) error {
		conn.AddTable(d.table)
		conn.AddChain(d.chain)
		conn.AddRule(&nftables.Rule{Table: d.table, Chain: d.chain, Exprs: []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}})
		return conn.Flush()
	}))
	return d
}

func (d *dropper) do(f func(*nftables.Conn) error) error {
	return d.node.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		return f(conn)
	})
}

func (d *dropper) undo() error {
	return d.do(func(conn *nftables.Conn) error {
		conn.DelTable(d.table)
		return conn.Flush()
	})
}

// another waits until a packet has been dropped since the last call.
func (d *dropper) another(t *testing.T) error {
	return wait.Until(t.Context(), func() error {
		n, err := d.dropped()
		if err == nil && n == d.seen {
			err = errors.New("no packet has been dropped")
		}
		d.seen = n
		return err
	})
}

func (d *dropper) dropped() (n uint64, err error) {
	err = d.do(func(conn *nftables.Conn) error {
		rules, err := conn.GetRules(d.table, d.chain)
		if err != nil {
			return err
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					n += counter.Packets
				}
			}
		}
		return nil
	})
	return n, err
}
