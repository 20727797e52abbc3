//go:build linux

package semantics

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Where --nodeport-addresses names ::1, the node reaches TCP NodePorts there as it does at 127.0.0.1: endpoints of any node, refused
// without one. Other protocols, families and clients are not served there, and other addresses as without.
func TestRow10NodePortsAtLoopback6(t *testing.T) {
	loopback := numbered("127.0.0.", "::", 1)
	for _, tc := range []struct {
		flag  string
		there bool // at [::1]
		main  bool // at the node's main address
	}{
		{"localhost", true, false},
		{"primary,::1/128", true, true},
		{"all,localhost", true, true},
		{"::/0", false, true},
		{"127.0.0.0/8", false, true}, // IPv6 is not restricted
	} {
		t.Run(tc.flag, func(t *testing.T) {
			flags := []string{"--nodeport-addresses", tc.flag}
			onEveryPlaneWith(t, setup{flags: flags, needs: ownSettings}, func(t *testing.T, c *cluster) {
				c.serve(service("web", clusterIP(1), nodePort(30001)), c.here, c.there)
				c.serve(service("local", clusterIP(2), nodePort(30002), externalLocal), c.there)
				c.serve(service("empty", clusterIP(3), nodePort(30003)))
				c.serve(service("udp", clusterIP(4), nodePort(30004), protocol(v1.ProtocolUDP)), c.here)
				c.serve(service("ipv4", dual{v4: clusterIP(5).v4}, nodePort(30005)), c.here)
				c.serve(service("ipv6", dual{v6: clusterIP(6).v6}, nodePort(30006)), c.here)
				c.serve(service("busy", clusterIP(7), nodePort(30007)), c.here)
				c.serve(service("node", clusterIP(8), nodePort(30008)), c.Node)
				c.listen(c.Node, 30007) // has the port first
				c.listen(c.Node, 8080)
				c.apply()

				served := func(o outcome) outcome {
					if tc.there {
						return o
					}
					return refused
				}
				atMain := func(o outcome) outcome {
					if tc.main {
						return o
					}
					return refused
				}
				at := func(port uint16) target { return v6(loopback.on(port)) }
				c.expect(t,
					probe{name: "any node's endpoints", from: c.Node, to: at(30001), want: served(by(c.here, c.there).masquerade())},
					probe{name: "policy Local", from: c.Node, to: at(30002), want: served(by(c.there))},
					probe{name: "no endpoint", from: c.Node, to: at(30003), want: refused},
					probe{name: "UDP", from: c.Node, proto: "udp", to: at(30004), want: refused},
					probe{name: "IPv4 only", from: c.Node, to: at(30005), want: refused},
					probe{name: "IPv6 only", from: c.Node, to: at(30006), want: served(by(c.here))},
					probe{name: "a port of the node's own", from: c.Node, to: at(30007), want: by(c.Node)},
					probe{name: "an endpoint on the node", from: c.Node, to: at(30008), want: served(by(c.Node))},
					probe{name: "the main address", from: c.External, to: v6(of(c.Node).on(30001)), want: atMain(by(c.here, c.there))},
				)
			})
		})
	}
}

// By default no NodePort is served at [::1], and nothing of nkp's listens there.
func TestRow10NoNodePortsAtLoopback6(t *testing.T) {
	onEveryPlaneWith(t, setup{needs: ownSettings}, func(t *testing.T, c *cluster) {
		c.serve(service("web", clusterIP(1), nodePort(30001)), c.here)
		c.apply()
		c.expect(t,
			probe{name: "not at loopback", from: c.Node, to: v6(numbered("127.0.0.", "::", 1).on(30001)), want: refused},
			probe{name: "the main address", from: c.External, to: of(c.Node).on(30001), want: by(c.here)},
		)
		out, err := c.Exec(c.Node, "ss", "-Htln", "sport", "=", fmt.Sprint(":", 30001))
		if err != nil || out != "" {
			t.Errorf("something listens: %s, %v", out, err)
		}
	})
}
