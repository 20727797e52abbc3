//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What trace --reply says of an answer is what becomes of it, also where a flow drops it. That answers arrive is in
// TestTrace.
func TestTraceReply(t *testing.T) {
	nightly.Only(t, "TestTraceExistingConnection has an answer")
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC)
	here, there := c.pods[0], c.remotes[0]
	web := service("web", "40.0.0.1", exposed(30080))
	c.begin(web, slice(web, 8080, ats(here.IP4, there.IP4)...))
	client := c.pods[1].Host

	// A flow that matches the translated answer is not met, because ofproto/trace does not undo translations: nothing is certain then.
	_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0xbad1,table=30,priority=65000,ct_state=+rpl+trk,tcp,nw_src=40.0.0.1,actions=drop")
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
		r, status = c.trace(t, "tcp", from.IP(here.IP4).String(), to, "--live")
		if status != 1 || r.Reply != nil || r.Live.Verdict != "uncertain" || !strings.Contains(strings.Join(r.Live.Differences, "\n"), "is lost: by another owner's flow: cookie=0xbad") {
			t.Errorf("%s, answers that are dropped, without --reply: status %d, %+v", from.Name, status, r.Live)
		}
		c.unanswered(t, from, "tcp", to, c.direct(t, from)) // datagrams pass
	}
	out, _, status := c.nkp("trace", "--socket", c.socket(), "--from", client.IP(here.IP4).String(), "--to", "40.0.0.1:80", "--live", "--reply")
	if status != 1 || !strings.Contains(out, "\nthe answer:\n 1. ") || !strings.Contains(out, "the answer of "+hostPort(here.IP4, 8080)+" is lost: by another owner's flow") {
		t.Errorf("as text: status %d\n%s", status, out)
	}
}

// trace says what is not known of an endpoint that answers no datagram, whether the process reads it or not. That is no fault.
func TestTraceSilentDatagrams(t *testing.T) {
	onTracePlanes(t, func(t *testing.T, plane string, c *cluster) {
		end := c.remotes[0]
		s4, s6 := service("four", "40.0.0.1", protocol(v1.ProtocolUDP)), service("six", "fd00:40::1", protocol(v1.ProtocolUDP))
		c.begin(s4, slice(s4, 9090, at(end.IP4)), s6, slice(s6, 9090, at(end.IP6)))
		l, err := end.ListenPacket(":9090")
		must(t, err)
		defer l.Close()
		client := c.pods[1]
		for to, from := range map[string]netip.Addr{"40.0.0.1:80": client.IP4, "[fd00:40::1]:80": client.IP6} {
			says := func(want int) {
				t.Helper()
				var r traced
				c.eventually(fmt.Sprintf("trace says that %d endpoints of %s are silent", want, to), func() error {
					var status int
					if r, status = c.trace(t, "udp", from.String(), to, "--live"); r.Live == nil || !r.Live.Agrees || status != 0 || len(r.Live.Unknown) != want {
						return fmt.Errorf("status %d, %+v", status, r.Live)
					}
					return nil
				})
			}
			c.sends(t, client.Host, "udp", to)
			says(0) // its answer may be on the way
			c.sends(t, client.Host, "udp", to)
			says(1)
		}
	})
}
