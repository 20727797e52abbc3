//go:build linux

package packets

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A node that does not forward is named by trace --live, although its rules are right, in both families.
func TestNodeDoesNotForward(t *testing.T) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "nftables", "--service-cidr", serviceCIDRs)
	four, six := service("four", "40.0.0.1"), service("six", "fd00:40::1")
	c.begin(four, slice(four, 8080, at(c.pods[0].IP4)), six, slice(six, 8080, at(c.pods[0].IP6)))
	client := aPod(c)
	for to, off := range map[string]string{"40.0.0.1:80": "net.ipv4.ip_forward=0", "[fd00:40::1]:80": "net.ipv6.conf.all.forwarding=0"} {
		from := client.IP4.String()
		if to[0] == '[' {
			from = client.IP6.String()
		}
		trace := []string{"trace", "--live", "--socket", c.socket(), "--from", from, "--to", to}
		c.ask(t, client, "tcp", to, c.pods[0].Name)
		if out, _, status := c.nkp(trace...); status != 0 {
			t.Errorf("status %d:\n%s", status, out)
		}
		_, err := c.Exec(c.Node, "sysctl", "-qw", off)
		must(t, err)
		out, _, status := c.nkp(trace...)
		if says(t, "trace", out, `not known to arrive: the node does not forward packets of `); status != 1 {
			t.Errorf("status %d", status)
		}
	}
}

// Where the kernel forwards Services' packets, status names the chain that drops them whoever sends them, and no chain that lets some
// pass, or drops those to one endpoint or port only; trace --live names it for its packet.
func TestForwardingIsDropped(t *testing.T) {
	needsIPTables(t)
	const fw = "table inet fw { chain x { type filter hook forward priority 10; policy drop; "
	inBoth := []string{"IPv4 packets of Services: table inet fw, chain x drops it", "IPv6 packets of Services: table inet fw, chain x drops it"}
	const policy, refuses = "iptables-nft -P FORWARD DROP", "ip6tables-nft -A FORWARD -j REJECT"
	for name, tc := range map[string]struct {
		nightly bool
		options testbed.Options
		flags   []string
		// drops are what keeps packets of a family from being forwarded, and what names it.
		drops map[string][]string
	}{
		"nftables": {true, testbed.Options{Plane: testbed.Linux}, []string{"--mode", "nftables"}, map[string][]string{
			"nft '" + fw + "}; }'": inBoth,
			policy:                 {"IPv4 packets of Services: table ip filter, chain FORWARD drops it"},
			refuses:                {"IPv6 packets of Services: table ip6 filter, chain FORWARD refuses it"},
			"iptables-legacy -P FORWARD DROP": {"IPv4 packets of Services: chain FORWARD of iptables (legacy, IPv4) drops " +
				"what none of its rules accepts: -P FORWARD DROP"},
		}},
		"beside the bridge": {false, testbed.Options{NodeOutside: true}, []string{"--host-traffic", "nftables"}, map[string][]string{
			policy: {"IPv4 packets of Services: table ip filter, chain FORWARD drops it"}}},
		"iptables": {true, testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}, map[string][]string{
			"nft '" + fw + "}; }'": inBoth}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.nightly {
				nightly.Only(t, "the gate has one chain")
			}
			c := newCluster(t, tc.options, append(tc.flags, "--service-cidr", serviceCIDRs)...)
			end := c.remotes[0]
			four, six := service("four", "40.0.0.1", exposed(30080)), service("six", "fd00:40::1", exposed(30081), protocol(v1.ProtocolUDP))
			c.begin(four, slice(four, 8080, at(end.IP4)), six, slice(six, 8080, at(end.IP6)))
			ways := []string{"tcp 172.16.0.2:30080", "udp [fd00:ac::2]:30081"}
			c.answered(t, c.External, ways, end.Name)
			for i, some := range []string{
				"tcp dport 8080 drop; ip6 daddr " + end.IP6.String() + " drop",
				"policy drop; ct status dnat accept; ct state established accept",
				"policy drop; ip saddr 192.0.2.0/24 accept; meta nfproto ipv6 accept",
			}[:nightly.Count(1, 3)] {
				for drops, named := range tc.drops {
					c.on(c.Node, drops)
					c.warnsOf(t, named)
					way := 0
					if strings.HasPrefix(named[0], "IPv6") {
						way = 1
					}
					proto, to, _ := strings.Cut(ways[way], " ")
					from := c.External.IP(netip.MustParseAddrPort(to).Addr()).String()
					if r, status := c.trace(t, proto, from, to, "--live"); status != 1 || r.Live == nil || r.Live.Verdict == "deliver" {
						t.Errorf("%s: status %d, %+v", drops, status, r.Live)
					}
					if drops != refuses {
						c.unanswered(t, c.External, proto, to, c.direct(t, c.Node))
					}
					c.on(c.Node, "nft 'table inet some { chain x { type filter hook forward priority 10; "+some+"; }; }'")
					c.on(c.Node, `nft delete table inet fw || true
						iptables-nft -P FORWARD ACCEPT
						ip6tables-nft -D FORWARD -j REJECT || true
						iptables-legacy -P FORWARD ACCEPT`)
					c.warnsOf(t, nil)
					c.on(c.Node, "nft delete table inet some")
					if i == 0 && strings.HasPrefix(drops, "iptables-legacy") { // a rule may let packets pass
						c.on(c.Node, drops)
						c.warnsOf(t, named)
						c.on(c.Node, "iptables-legacy -A FORWARD -i eth9 -j ACCEPT")
						c.warnsOf(t, nil)
						c.on(c.Node, "iptables-legacy -F FORWARD\niptables-legacy -P FORWARD ACCEPT")
					}
				}
			}
			c.answered(t, c.External, ways, end.Name)
		})
	}
}

// A strict rp_filter is named where the kernel dropped packets by it that it would have answered by another device, in status and by
// trace for the client. It is not where answers leave by the device, nor before a packet was dropped.
func TestReversePath(t *testing.T) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "nftables", "--service-cidr", serviceCIDRs)
	s := service("web", "40.0.0.1", exposed(30080))
	end := c.remotes[0]
	c.begin(s, slice(s, 8080, at(end.IP4)))
	const to, named = "172.16.0.2:30080", "net.ipv4.conf.eth0.rp_filter, or that of all, is 1"
	in := func(device string, want int) {
		t.Helper()
		out, _, status := c.nkp("trace", "--live", "--socket", c.socket(), "--from", c.External.IP4.String(), "--to", to, "--in", device)
		if status != want || strings.Contains(out, "rp_filter") != (want == 1) {
			t.Errorf("trace --in %s: status %d\n%s", device, status, out)
		}
	}
	must(t, c.Node.Sysctl("ipv4/conf/eth0/rp_filter", "1"))
	c.answered(t, c.External, []string{"tcp " + to}, end.Name)
	in("eth0", 0)

	// Answers would leave by another device; packets to the endpoint go as before.
	c.on(c.Node, `ip link add beside type veth peer name beyond
		ip link set beside up
		ip link set beyond up
		ip addr add 10.99.0.2/24 dev beside
		ip route add 10.0.1.0/24 via 172.16.0.1
		ip route replace default via 10.99.0.1 dev beside`)
	c.warnsOf(t, nil)
	in("eth0", 1)
	in("beside", 0)
	c.unanswered(t, c.External, "tcp", to, c.direct(t, c.pods[0].Host))
	c.warnsOf(t, []string{named})
	must(t, c.Node.Sysctl("ipv4/conf/eth0/rp_filter", "2"))
	c.warnsOf(t, nil)
	in("eth0", 0)
}
