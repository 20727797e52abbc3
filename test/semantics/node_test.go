//go:build linux

package semantics

import "net/netip"

// Further addresses that a node may have: on the device that has its main ones, and on a device of its own. Nothing
// prefers the second ones as a source.
var (
	secondAddress = numbered("172.16.0.", "fd00:ac::", 9)
	extraAddress  = numbered("172.31.0.", "fc00:31::", 1)
)

const extraDevice = "extra0"

// addNodeAddress gives the node one more address, which the router sends there.
func (c *cluster) addNodeAddress(device string, d dual) {
	c.t.Helper()
	for _, a := range d.on(0).addresses() {
		p := netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
		must(c.t, c.Node.AddAddr(device, p))
		must(c.t, c.Router.AddRoute(p, c.Node.IP(a.Addr()), c.RouterDevice()))
	}
}

// addExtraDevice makes one more device on the node, with extraAddress.
func (c *cluster) addExtraDevice() {
	c.t.Helper()
	for _, argv := range [][]string{
		{"ip", "link", "add", extraDevice, "type", "veth", "peer", "name", extraDevice + "-end"},
		{"ip", "link", "set", extraDevice, "up"},
		{"ip", "link", "set", extraDevice + "-end", "up"},
	} {
		_, err := c.Exec(c.Node, argv...)
		must(c.t, err)
	}
	c.addNodeAddress(extraDevice, extraAddress)
}
