//go:build linux

package fallback_test

import (
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A TCP client that asks before its Service is served is connected by the next SYN that it sends: when nkp starts, and when a Service comes.
func TestEarlyTCP(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{})
		// The kernel follows connections in a namespace once a rule there asks for it.
		run(t, b.Node, "nft", `table inet other {
			chain output { type filter hook output priority 0; ct state new accept; }
			chain forward { type filter hook forward priority 0; ct state new accept; }
		}`)
		// The router does not answer that it has no route.
		run(t, b.Router, "nft", `table inet other {
			chain prerouting { type filter hook prerouting priority 0; ip daddr 40.0.0.0/24 drop; ip6 daddr fd00:40::/64 drop; }
		}`)
		var p *process
		for number, serve := range []func(string){func(m string) { p = start(t, b, defaults(backend), m) }, func(m string) { p.sync(m) }} {
			vip4, vip6 := fmt.Sprintf("40.0.0.%d:80", number+1), fmt.Sprintf("[fd00:40::%d]:80", number+1)
			answers := make(chan error)
			clients := []struct {
				from *testbed.Host
				to   string
			}{{b.Node, vip4}, {b.Node, vip6}, {pods[1].Host, vip4}, {pods[1].Host, vip6}}
			for _, c := range clients {
				go func() { // ends with the test's context, or by itself
					conn, err := c.from.DialTCP(t.Context(), c.to, testbed.DialOptions{Timeout: 2 * wait.Limit})
					if err == nil {
						err = conn.Close()
					}
					answers <- err
				}()
			}
			early := func() (n int) {
				t.Helper()
				for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
					err := b.Node.Do(func() error {
						return conntrack.Each(t.Context(), f, 0, func(c *dpctl.Connection) error {
							if c.Protocol == "TCP" && c.State == "SYN_SENT" && (c.Frontend.String() == vip4 || c.Frontend.String() == vip6) {
								n++
							}
							return nil
						})
					})
					must(t, err)
				}
				return n
			}
			wait.For(t, "all SYNs to be in conntrack", func() bool { return early() == len(clients) })

			// No SYN comes before nkp is done: between the rules and the end of the scan it would be refused.
			held := []*testbed.Host{b.Node, pods[1].Host}
			for _, host := range held {
				run(t, host, "nft", `table inet held {
					chain output { type filter hook output priority -310; tcp dport 80 tcp flags & (syn | ack) == syn drop; }
				}`)
			}
			manifests := nodeObject
			for n := range number + 1 {
				name := fmt.Sprint("s", n)
				manifests += service(name, n+1, "type: NodePort") + endpoints(name, pods[0], pods[2])
			}
			serve(manifests)
			wait.For(t, "the early connections to be forgotten", func() bool { return early() == 0 })
			for _, host := range held {
				run(t, host, "nft", "delete table inet held")
			}
			for range clients {
				if err := <-answers; err != nil {
					t.Error("asked before the Service was served:", err)
				}
			}
		}
	})
}
