//go:build linux

package packets

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// earlierMasquerade turns the masquerading flows on the switch into those of the pipeline that matched ct_state's snat bit.
func (c *cluster) earlierMasquerade(t *testing.T) {
	t.Helper()
	now := strings.NewReplacer(",exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[])", "", "set_field:0x20/0x20->reg0", "set_field:0x8/0x8->reg0",
		"ct_mark=0/0x1,reg0=0x20/0x20", "ct_state=+trk-snat,reg0=0x8/0x8")
	var edits strings.Builder
	for _, table := range []string{"table=2", "table=30"} {
		out, err := c.Ofctl("--no-stats", "--no-names", "dump-flows", c.Bridge, table)
		must(t, err)
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			earlier := now.Replace(line)
			if earlier == line {
				continue
			}
			match, _, _ := strings.Cut(strings.TrimSpace(line), " actions=")
			_, match, _ = strings.Cut(match, ",") // without the cookie
			edits.WriteString("delete_strict " + strings.ReplaceAll(match, " ", "") + "\nadd " + earlier + "\n")
		}
	}
	if n := strings.Count(edits.String(), "add "); n < 8 {
		t.Fatalf("%d flows masquerade or check it, want at least 8:\n%s", n, edits.String())
	}
	file := filepath.Join(c.dir, "earlier")
	must(t, os.WriteFile(file, []byte(edits.String()), 0o644))
	_, err := c.Ofctl("--bundle", "add-flows", c.Bridge, file)
	must(t, err)
}

// A node whose switch masquerades as the earlier pipeline did moves to the present one while its masqueraded connections go on:
// no packet of theirs is lost, and no new connection fails.
func TestUpgradeOfMasquerade(t *testing.T) {
	t.Parallel()
	tcp, udp := service("tcp", "40.0.0.1", exposed(30080)), service("udp", "40.0.0.2", exposed(30053), protocol(v1.ProtocolUDP))
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	c.put(tcp, slice(tcp, 8080, at(c.pods[1].IP4)), udp, slice(udp, 8080, at(c.pods[1].IP4)))
	c.servePods(t)
	c.run()
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.earlierMasquerade(t)
	must(t, c.Settle())
	c.flush()

	const clients = 8
	var held []*testbed.Held
	for range clients {
		h, err := c.External.Hold(c.ctx, hostPort(testbed.NodeIP4, 30080), testbed.DialOptions{})
		must(t, err)
		held = append(held, h)
	}
	checkHeld(t, "at first", held)
	stop, lost := make(chan struct{}), make(chan [2]int, clients)
	for range clients {
		conn, err := c.External.DialUDP(c.ctx, hostPort(testbed.NodeIP4, 30053), testbed.DialOptions{})
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		go func() { lost <- askUntil(conn, c.pods[1].Name, stop) }() // ends with stop
	}
	time.Sleep(testbed.Patient(300 * time.Millisecond)) // cached, by the earlier flows
	if out, err := c.Appctl("dpctl/dump-conntrack", "zone=1002"); err != nil || !strings.Contains(out, "zone=1002") || strings.Contains(out, "mark=") {
		t.Errorf("connections of the earlier pipeline: %v\n%s", err, out)
	}
	newOnes := c.load(hostPort(testbed.NodeIP4, 30080))
	c.run()
	c.settle()
	must(t, c.Settle())
	time.Sleep(testbed.Patient(300 * time.Millisecond))
	close(stop)
	sent, missing := 0, 0
	for range clients {
		n := <-lost
		sent, missing = sent+n[0], missing+n[1]
	}
	if missing > 0 || sent < 100*clients {
		t.Errorf("%d of %d datagrams of established connections were lost", missing, sent)
	}
	checkHeld(t, "after the upgrade", held)
	if n, failed, err := newOnes(); failed > 0 || n < 10 {
		t.Errorf("%d of %d new connections failed, first: %v", failed, n, err)
	}
}

// askUntil sends datagrams on a connection, each after the answer to the one before, until stop is closed, and returns how many
// it sent and how many were not answered.
func askUntil(conn net.Conn, who string, stop <-chan struct{}) (n [2]int) {
	for {
		select {
		case <-stop:
			return n
		default:
		}
		if n[0]++; askOn(conn, who) != nil {
			n[1]++
		}
	}
}
