//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// turnBack changes flows on the switch to those of an earlier pipeline: earlier returns what a flow was, "" if it was not there.
func (c *cluster) turnBack(t *testing.T, atLeast int, earlier func(flow string) string) {
	t.Helper()
	var edits strings.Builder
	changes := 0
	out, err := c.Ofctl("--no-stats", "--no-names", "dump-flows", c.Bridge)
	must(t, err)
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		was := earlier(line)
		if was == line {
			continue
		}
		changes++
		match, _, _ := strings.Cut(line, " actions=")
		_, match, _ = strings.Cut(match, ",") // without the cookie
		edits.WriteString("delete_strict " + strings.ReplaceAll(match, " ", "") + "\n")
		if was != "" {
			edits.WriteString("add " + was + "\n")
		}
	}
	if changes < atLeast {
		t.Fatalf("%d flows differ from the earlier pipeline's, want at least %d:\n%s", changes, atLeast, edits.String())
	}
	file := filepath.Join(c.dir, "earlier")
	must(t, os.WriteFile(file, []byte(edits.String()), 0o644))
	_, err = c.Ofctl("--bundle", "add-flows", c.Bridge, file)
	must(t, err)
}

// A node whose switch masquerades as the earlier pipeline did, which matched ct_state's snat bit, moves to the present one while its
// masqueraded connections go on: no packet of theirs is lost, and no new connection fails.
func TestUpgradeOfMasquerade(t *testing.T) {
	now := strings.NewReplacer(",exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[])", "", "set_field:0x20/0x20->reg0", "set_field:0x8/0x8->reg0",
		"ct_mark=0/0x1,reg0=0x20/0x20", "ct_state=+trk-snat,reg0=0x8/0x8")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.upgrade(t, testbed.NodeIP4, 8, func(line string) string {
		if strings.Contains(line, " table=2,") || strings.Contains(line, " table=30,") {
			return now.Replace(line)
		}
		return line
	}, func() {
		if out, err := c.Appctl("dpctl/dump-conntrack", "zone=1002"); err != nil || !strings.Contains(out, "zone=1002") || strings.Contains(out, "mark=") {
			t.Errorf("connections of the earlier pipeline: %v\n%s", err, out)
		}
	})
}

// A node whose flows matched full IPv6 addresses at once moves to those that match prefixes first, as in TestUpgradeOfMasquerade.
func TestUpgradeToPrefixes(t *testing.T) {
	nightly.Only(t, "TestUpgradeOfMasquerade moves between pipelines in the same way")
	const fields = 1<<23 - 1<<8 // pipeline/near.go
	field := regexp.MustCompile(`reg0=(0x[0-9a-f]+|0)/(0x[0-9a-f]+),?`)
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.upgrade(t, testbed.NodeIP6, 50, func(line string) string {
		match, actions, _ := strings.Cut(line, " actions=")
		if to := regexp.MustCompile(`^set_field:0x[0-9a-f]+/(0x[0-9a-f]+)->reg0,resubmit`).FindStringSubmatch(actions); to != nil {
			if mask, err := strconv.ParseUint(to[1], 0, 32); err == nil && mask&fields != 0 {
				return ""
			}
		}
		return field.ReplaceAllStringFunc(match, func(s string) string {
			m := field.FindStringSubmatch(s)
			value, err := strconv.ParseUint(m[1], 0, 32)
			must(t, err)
			mask, err := strconv.ParseUint(m[2], 0, 32)
			must(t, err)
			if mask&^fields == 0 {
				return ""
			}
			return strings.Replace(s, m[1]+"/"+m[2], fmt.Sprintf("%#x/%#x", value&^fields, mask&^fields), 1)
		}) + " actions=" + actions
	}, func() {})
}

// upgrade has nkp replace the flows of an earlier pipeline while clients outside use NodePorts of the node's address. It calls cached
// once the datapath has cached the earlier flows.
func (c *cluster) upgrade(t *testing.T, node netip.Addr, atLeast int, earlier func(flow string) string, cached func()) {
	t.Helper()
	ip := "40.0.0."
	if node.Is6() {
		ip = "fd00:40::"
	}
	tcp, udp := service("tcp", ip+"1", exposed(30080)), service("udp", ip+"2", exposed(30053), protocol(v1.ProtocolUDP))
	end := c.pods[1].IP(node)
	c.put(tcp, slice(tcp, 8080, at(end)), udp, slice(udp, 8080, at(end)))
	c.servePods(t)
	c.run()
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.turnBack(t, atLeast, earlier)
	must(t, c.Settle())
	c.flush()

	const clients = 8
	var held []*testbed.Held
	for range clients {
		h, err := c.External.Hold(c.ctx, hostPort(node, 30080), testbed.DialOptions{})
		must(t, err)
		held = append(held, h)
	}
	checkHeld(t, "at first", held)
	var exchanged [clients]atomic.Int64 // datagrams that were answered
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range clients {
		conn, err := c.External.DialUDP(c.ctx, hostPort(node, 30053), testbed.DialOptions{})
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		wg.Go(func() { // ends with stop, or with a lost datagram
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := askOn(conn, c.pods[1].Name); err != nil {
					t.Errorf("client %d: datagram %d of an established connection: %v", i, exchanged[i].Load()+1, err)
					return
				}
				exchanged[i].Add(1)
			}
		})
	}
	more := func(n int64) { // of each client
		t.Helper()
		for i := range exchanged {
			was := exchanged[i].Load()
			wait.For(t, "datagrams on established connections", func() bool { return t.Failed() || exchanged[i].Load() >= was+n })
		}
	}
	more(20)
	must(t, c.Settle())
	more(5) // cached, by the earlier flows
	cached()
	load := c.underLoad(t, hostPort(node, 30080))
	load.more(10)
	c.run()
	c.settle()
	must(t, c.Settle())
	more(20)
	load.more(10)
	close(stop)
	wg.Wait()
	load.end()
	checkHeld(t, "after the upgrade", held)
}

// A node whose switch hashes every SYN to a Service range, as an earlier pipeline did, moves to the present one: no new connection
// fails, and that pipeline's group is gone.
func TestUpgradeOfOpening(t *testing.T) {
	nightly.Only(t, "TestUpgradeOfMasquerade moves between pipelines in the same way")
	one, two := service("one", "40.0.0.1"), service("two", "40.0.0.2")
	c := start(t, one, two)
	c.servePods(t)
	c.put(one, slice(one, 8080, at(c.pods[1].IP4)), two, slice(two, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...))
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM))
	const group = "group_id=0x60000000"
	_, err := c.Ofctl("add-group", c.Bridge, group+",type=select,selection_method=dp_hash,bucket=weight:1,actions=resubmit(,1)")
	must(t, err)
	_, err = c.Ofctl("mod-flows", c.Bridge, "table=3,tcp,nw_dst=40.0.0.0/16,tcp_flags=+syn-ack,reg0=0/4,priority=100,actions=group:0x60000000")
	must(t, err)
	must(t, c.Settle())
	loads := []*load{c.underLoad(t, "40.0.0.1:80"), c.underLoad(t, "40.0.0.2:80")}
	more := func() {
		t.Helper()
		for _, l := range loads {
			l.more(10)
		}
	}
	more()
	hashed := c.cachedFor(t, "hash(l4", "40.0.0.1:80")
	c.run()
	c.settle()
	must(t, c.Settle())
	more()
	for _, l := range loads {
		l.end()
	}
	if now := c.cachedFor(t, "hash(l4", "40.0.0.1:80"); len(hashed) == 0 || len(now) > 0 {
		t.Errorf("cached flows that have packets hashed:\n%s\nafter the upgrade:\n%s", strings.Join(hashed, ""), strings.Join(now, ""))
	}
	out, err := c.Ofctl("dump-groups", c.Bridge)
	must(t, err)
	if strings.Contains(out, "group_id=1610612736,") {
		t.Errorf("the earlier pipeline's group is still there:\n%s", out)
	}
}
