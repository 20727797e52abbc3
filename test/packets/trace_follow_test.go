//go:build linux

package packets

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
)

// What a client's packets come to while trace --follow looks is what it says: answered, without an answer, refused by the endpoint,
// refused by nkp, or that none came.
func TestTraceFollow(t *testing.T) {
	nightly.Only(t, "it looks for seconds at each of three planes")
	onTracePlanes(t, func(t *testing.T, plane string, c *cluster) {
		web, hole, shut, empty := service("web", "40.0.0.1"), service("hole", "40.0.0.2"), service("shut", "40.0.0.3"), service("empty", "40.0.0.4")
		there := c.remotes[0].IP4
		c.begin(web, slice(web, 8080, at(there)), hole, slice(hole, 8081, at(there)), shut, slice(shut, 9999, at(there)), empty)
		_, err := c.Exec(c.remotes[0].Host, "nft", "add table inet hole; add chain inet hole in { type filter hook input priority 0; }; add rule inet hole in tcp dport 8081 drop")
		must(t, err)
		ovs := plane == "ovs"
		client := c.pods[1]
		for _, tc := range []struct {
			to, outcome, summary string // outcome "": no connection is seen
			quiet                bool
		}{
			{"40.0.0.1:80", "answered", "answered by " + hostPort(there, 8080), false},
			{"40.0.0.2:80", "unanswered", "unanswered by " + hostPort(there, 8081), false},
			{"40.0.0.3:80", "refused", "by " + hostPort(there, 9999), false},
			{"40.0.0.4:80", "", "nkp refused ", false},
			{"40.0.0.1:80", "", "no packet of " + client.IP4.String() + " to 40.0.0.1:80 came", true},
		} {
			// The client tries all the time: also after the first look, whenever that comes.
			ended, rested := make(chan struct{}), make(chan struct{})
			go func() { // ends with ended
				defer close(rested)
				for !tc.quiet {
					c.sends(t, client.Host, "tcp", tc.to)
					select {
					case <-ended:
						return
					case <-time.After(100 * time.Millisecond):
					}
				}
			}()
			out, errOut, status := c.nkp("trace", "--socket", c.socket(), "--from", client.IP4.String(), "--to", tc.to, "--live", "--follow=2s", "-o", "json")
			close(ended)
			<-rested
			var r struct {
				Follow *struct {
					Connections []struct{ Outcome, Endpoint string }
					Packets     *struct{ First, ToEndpoints, ToClients int }
					Summary     []string
				}
			}
			failed := tc.outcome == "unanswered" || tc.outcome == "refused" // what an earlier look may have found
			if status != 0 && !failed || json.Unmarshal([]byte(out), &r) != nil || r.Follow == nil {
				t.Errorf("%s: %s%s", tc.to, out, errOut)
				continue
			}
			f, summary := r.Follow, strings.Join(r.Follow.Summary, "\n")
			outcomes := map[string]int{} // the last may be under way
			for _, a := range f.Connections {
				outcomes[a.Outcome]++
			}
			switch {
			case !ovs && tc.outcome == "refused": // the kernel keeps no entry of it for long
			case tc.outcome == "" && len(f.Connections) > 0, tc.outcome != "" && outcomes[tc.outcome] == 0, tc.outcome != "answered" && outcomes["answered"] > 0:
				t.Errorf("%s: %+v; want %s", tc.to, f.Connections, tc.outcome)
			case ovs && !strings.Contains(summary, tc.summary):
				t.Errorf("%s: %s\nwant %s", tc.to, summary, tc.summary)
			case ovs && tc.outcome == "answered" && (f.Packets == nil || f.Packets.First < 1 || f.Packets.ToEndpoints < 2 || f.Packets.ToClients < 2):
				t.Errorf("%s: %+v", tc.to, f.Packets)
			}
		}
		out, _, _ := c.nkp("services", "default/hole", "--socket", c.socket())
		says(t, "services", out, `TCP connections in the conntrack table at .*Z, closed ones for half a minute: 0 answered, [1-9]\d* without answer, 0 refused\n`)
		out, _, status := c.nkp("trace", "--socket", c.socket(), "--from", client.IP4.String(), "--to", "40.0.0.1:80", "--live", "--follow=1s")
		if status != 0 || !strings.Contains(out, "let the client try now\n\nno ") {
			t.Errorf("as text: status %d\n%s", status, out)
		}
		for _, flags := range [][]string{{"--follow"}, {"--live", "--follow=6m"}, {"--live", "--follow=-1s"}, append([]string{"--live", "--follow"}, c.common()...)} {
			if out, _, status := c.nkp(append([]string{"trace", "--from", "10.0.0.1", "--to", "40.0.0.1:80"}, flags...)...); status != 2 {
				t.Errorf("%s: status %d\n%s", flags, status, out)
			}
		}
	})
}
