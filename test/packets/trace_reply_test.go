//go:build linux

package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What trace --reply says of the answer is what becomes of it: it arrives, or the flow that drops it is named.
func TestTraceReply(t *testing.T) {
	nightly.Only(t, "TestTraceExistingConnection has an answer")
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC)
	here, there := c.pods[0], c.remotes[0]
	web, udp, six, empty := service("web", "40.0.0.1", exposed(30080)), service("udp", "40.0.0.2", protocol("UDP")), service("six", "fd00:40::1", exposed(30082)), service("empty", "40.0.0.3")
	c.put(web, slice(web, 8080, ats(here.IP4, there.IP4)...), udp, slice(udp, 8080, at(there.IP4)), six, slice(six, 8080, ats(here.IP6, there.IP6)...), empty)
	c.run()
	c.settle()
	c.servePods(t)
	client := c.pods[1].Host
	for _, tc := range []struct {
		from            *testbed.Host
		proto, to, want string
	}{
		{client, "tcp", "40.0.0.1:80", "deliver"},
		{here.Host, "tcp", "40.0.0.1:80", "deliver"},
		{client, "udp", "40.0.0.2:80", "deliver"},
		{client, "tcp", "[fd00:40::1]:80", "deliver"},
		{c.External, "tcp", "172.16.0.2:30080", "deliver"},
		{c.External, "tcp", "[fd00:ac::2]:30082", "deliver"},
		{c.Node, "tcp", "40.0.0.1:80", "deliver"},
		{client, "tcp", "40.0.0.3:80", "deliver"},
		{client, "tcp", "40.0.0.99:80", "drop"},
	} {
		r, status := c.trace(t, tc.proto, tc.from.IP(netip.MustParseAddrPort(tc.to).Addr()).String(), tc.to, "--live", "--reply")
		if r.Reply == nil || r.Reply.Verdict != tc.want || r.Reply.Live == nil || !r.Reply.Live.Agrees || r.Reply.Live.Verdict != tc.want || status != 0 {
			t.Errorf("%s to %s: status %d, reply %+v", tc.from.Name, tc.to, status, r.Reply)
			continue
		}
		c.happens(t, tc.from, tc.proto, tc.to, r)
	}
	held, err := client.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	if r, _ := c.trace(t, "tcp", client.IP(here.IP4).String(), "40.0.0.1:80", "--live", "--reply"); !strings.Contains(strings.Join(r.Reply.Live.Steps, "\n"), "becomes one from 40.0.0.1:80") {
		t.Errorf("an existing connection: %+v", r.Reply)
	}

	// A flow that matches the translated answer is not met, because ofproto/trace does not undo translations: nothing is certain then.
	_, err = c.Ofctl("add-flow", c.Bridge, "cookie=0xbad1,table=30,priority=65000,ct_state=+rpl+trk,tcp,nw_src=40.0.0.1,actions=drop")
	must(t, err)
	if r, status := c.trace(t, "tcp", client.IP(here.IP4).String(), "40.0.0.1:80", "--live", "--reply"); status != 1 || r.Reply == nil || r.Reply.Live == nil || r.Reply.Live.Verdict != "uncertain" {
		t.Errorf("translated answers that are dropped: status %d, %+v", status, r.Reply)
	}
	c.unanswered(t, client, "tcp", "40.0.0.1:80", c.direct(t, client))

	// Answers only are dropped, late on their way: the way there is as it should be.
	_, err = c.Ofctl("add-flow", c.Bridge, "cookie=0xbad,table=30,priority=65001,ct_state=+rpl+trk,tcp,actions=drop")
	must(t, err)
	for _, from := range []*testbed.Host{client, c.External} {
		to := "40.0.0.1:80"
		if from == c.External {
			to = "172.16.0.2:30080"
		}
		r, status := c.trace(t, "tcp", from.IP(here.IP4).String(), to, "--live", "--reply")
		if r.Reply == nil || r.Reply.Live == nil || r.Reply.Live.Verdict != "drop" || status != 1 || !strings.Contains(strings.Join(r.Reply.Live.Differences, "\n"), "cookie=0xbad") {
			t.Errorf("%s, answers that are dropped: status %d, %+v", from.Name, status, r.Reply)
		}
		c.unanswered(t, from, "tcp", to, c.direct(t, from)) // datagrams pass
	}
	out, _, status := c.nkp("trace", "--socket", c.socket(), "--from", client.IP(here.IP4).String(), "--to", "40.0.0.1:80", "--live", "--reply")
	if status != 1 || !strings.Contains(out, "\nthe answer:\n 1. ") || !strings.Contains(out, "the answer of "+hostPort(here.IP4, 8080)+" is lost: by another owner's flow") {
		t.Errorf("as text: status %d\n%s", status, out)
	}
}
