//go:build linux

package packets

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// turnBack changes flows on the switch to those of an earlier pipeline: earlier returns what a flow was.
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
		edits.WriteString("delete_strict " + strings.ReplaceAll(match, " ", "") + "\nadd " + was + "\n")
	}
	if changes < atLeast {
		t.Fatalf("%d flows differ from the earlier pipeline's, want at least %d:\n%s", changes, atLeast, edits.String())
	}
	file := filepath.Join(c.dir, "earlier")
	must(t, os.WriteFile(file, []byte(edits.String()), 0o644))
	_, err = c.Ofctl("--bundle", "add-flows", c.Bridge, file)
	must(t, err)
}

// A node whose switch masquerades as an earlier pipeline did, which matched ct_state's snat bit, moves to the present
// one while clients outside use NodePorts: no packet of their masqueraded connections is lost, and no new connection
// fails.
func TestUpgradeOfMasquerade(t *testing.T) {
	now := strings.NewReplacer(",exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[])", "", "set_field:0x20/0x20->reg0", "set_field:0x8/0x8->reg0",
		"ct_mark=0/0x1,reg0=0x20/0x20", "ct_state=+trk-snat,reg0=0x8/0x8")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	tcp := service("tcp", "40.0.0.1", exposed(30080))
	udp := service("udp", "40.0.0.2", exposed(30053), protocol(v1.ProtocolUDP))
	node, end := testbed.NodeIP4, c.pods[1].IP4
	c.begin(tcp, slice(tcp, 8080, at(end)), udp, slice(udp, 8080, at(end)))
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.turnBack(t, 8, func(line string) string {
		if strings.Contains(line, " table=2,") || strings.Contains(line, " table=30,") {
			return now.Replace(line)
		}
		return line
	})
	must(t, c.Settle())
	c.flush()

	const clients = 8
	held := c.hold(t, c.External, clients, hostPort(node, 30080))
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
	out, err := c.Appctl("dpctl/dump-conntrack", "zone=1002")
	if err != nil || !strings.Contains(out, "zone=1002") || strings.Contains(out, "mark=") {
		t.Errorf("connections of the earlier pipeline: %v\n%s", err, out)
	}
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

// A node in mode nftables moves on from a version that had fewer maps. The table stays, so that no new connection fails.
func TestUpgradeOfMaps(t *testing.T) {
	web := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "nftables", "--service-cidr", serviceCIDRs)
	c.begin(web, slice(web, 8080, at(c.pods[1].IP4)))
	must(t, c.agent.Stop(syscall.SIGTERM))
	table := func() string { // replaced, it has another handle
		t.Helper()
		out, err := c.Node.Exec(c.ctx, "nft", "-a", "list", "table", "ip", "nkp")
		must(t, err)
		for _, what := range []string{"map closing {", "map closing-nodeports {", "chain resets {"} {
			if !strings.Contains(out, what) {
				t.Errorf("no %q", what)
			}
		}
		line, _, _ := strings.Cut(out, "\n")
		return line
	}
	was := table()
	var edits strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		for _, chain := range []string{"filter-input", "filter-forward", "filter-output", "resets"} {
			edits.WriteString("flush chain " + family + " nkp " + chain + "\n")
		}
		for _, what := range []string{"chain " + family + " nkp resets", "map " + family + " nkp closing",
			"map " + family + " nkp closing-nodeports"} {
			edits.WriteString("delete " + what + "\n")
		}
	}
	_, err := c.Node.Exec(c.ctx, "nft", edits.String())
	must(t, err)

	load := c.underLoad(t, "40.0.0.1:80")
	load.more(10)
	c.run()
	c.settle()
	load.more(10)
	load.end()
	if now := table(); now != was {
		t.Errorf("%q was replaced by %q", was, now)
	}
}
