//go:build linux

package fallback

import (
	"fmt"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A TCP client that asks before its Service is served is connected by the next SYN that it sends: when nkp starts, and when a Service comes.
func TestEarlyTCP(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend xtables.Backend) {
		b, pods := bed(t, testbed.Options{})
		for host, rules := range map[*testbed.Host]string{
			// The kernel follows connections in a namespace once a rule there asks for it.
			b.Node: `table inet other {
				chain output { type filter hook output priority 0; ct state new accept; }
				chain forward { type filter hook forward priority 0; ct state new accept; }
			}`,
			// The router does not answer that it has no route.
			b.Router: `table inet other {
				chain prerouting { type filter hook prerouting priority 0; ip daddr 40.0.0.0/24 drop; ip6 daddr fd00:40::/64 drop; }
			}`,
		} {
			if _, err := host.Exec(t.Context(), "nft", rules); err != nil {
				t.Fatal(err)
			}
		}
		// SYNs after 0, 1, and 3 s. Since Linux 6.5 this setting puts four in as many seconds first.
		const linear = "/proc/sys/net/ipv4/tcp_syn_linear_timeouts"
		for _, host := range []*testbed.Host{b.Node, pods[1].Host} {
			if _, err := host.Exec(t.Context(), "sh", "-c", "[ ! -e "+linear+" ] || echo 0 >"+linear); err != nil {
				t.Fatal(err)
			}
		}
		var p *process
		for number, serve := range []func(string){func(m string) { p = start(t, b, defaults(backend), m) }, func(m string) { p.sync(m) }} {
			vip4, vip6 := fmt.Sprintf("40.0.0.%d:80", number+1), fmt.Sprintf("[fd00:40::%d]:80", number+1)
			asked := time.Now()
			answers := make(chan error)
			clients := []struct {
				from *testbed.Host
				to   string
			}{{b.Node, vip4}, {b.Node, vip6}, {pods[1].Host, vip4}, {pods[1].Host, vip6}}
			for _, c := range clients {
				go func() {
					conn, err := c.from.DialTCP(t.Context(), c.to, testbed.DialOptions{Timeout: testbed.Patient(10 * time.Second)})
					if err == nil {
						err = conn.Close()
					}
					answers <- err
				}()
			}
			for early := 0; early < len(clients); {
				early = 0
				for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
					err := b.Node.Do(func() error {
						return conntrack.Each(t.Context(), f, 0, func(c *dpctl.Connection) error {
							if c.Protocol == "TCP" && c.State == "SYN_SENT" && (c.Frontend.String() == vip4 || c.Frontend.String() == vip6) {
								early++
							}
							return nil
						})
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				if time.Since(asked) > 5*time.Second {
					t.Fatalf("%d of %d SYNs are in conntrack", early, len(clients))
				}
			}
			// The next SYN comes after 3 s. One that comes between the rules and the end of the scan is refused.
			time.Sleep(time.Until(asked.Add(1200 * time.Millisecond)))
			manifests := nodeObject
			for n := range number + 1 {
				name := fmt.Sprint("s", n)
				manifests += service(name, n+1, "type: NodePort") + endpoints(name, pods[0], pods[2])
			}
			serve(manifests)
			for range clients {
				if err := <-answers; err != nil {
					t.Errorf("asked %v before the Service was served: %v", time.Since(asked), err)
				}
			}
		}
	})
}
