//go:build linux

package packets

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// established is a connection whose cached flows a test looks at.
type established struct {
	name     string
	from     *testbed.Host
	to       string // address and port
	protocol v1.Protocol
	want     string // who answers
}

// exchange opens the connection and returns a function that sends a packet and waits for the answer.
func (e *established) exchange(t *testing.T, c *cluster) func() error {
	t.Helper()
	if e.protocol == v1.ProtocolTCP {
		conn, err := e.from.Hold(c.ctx, e.to, testbed.DialOptions{})
		if err != nil || conn.Who != e.want {
			t.Fatalf("%s: %v; want an answer of %s\n%s", e.name, err, e.want, c.explain("tcp", e.to))
		}
		t.Cleanup(func() { conn.Close() })
		return conn.Check
	}
	conn, err := e.from.DialUDP(c.ctx, e.to, testbed.DialOptions{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	check := func() error { return askOn(conn, e.want) }
	if err := check(); err != nil {
		t.Fatalf("%s: %v\n%s", e.name, err, c.explain("udp", e.to))
	}
	return check
}

// askOn sends a datagram and waits for the answer, which must be who's.
func askOn(conn net.Conn, who string) error {
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		return err
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	if err != nil {
		return err
	}
	if got, _, _ := strings.Cut(string(buf[:n]), " "); got != who {
		return fmt.Errorf("%q answers, want %s", got, who)
	}
	return nil
}

// shapesOfConnections puts Services of every kind in place and returns a connection of every kind through them: both
// families, TCP and UDP, endpoints on this bridge, behind the uplink, the client itself and the node; ClusterIP, NodePort
// and load balancer address; masqueraded and not; with session affinity; and past all Services.
func (c *cluster) shapesOfConnections(t *testing.T) (list []established) {
	t.Helper()
	n := 0
	for _, family := range []struct {
		name              string
		clusterIP, lb     string
		node              netip.Addr
		near, far, itself netip.Addr
	}{
		{"IPv4", "40.0.0.%d", "20.0.0.%d", testbed.NodeIP4, c.pods[1].IP4, c.remotes[0].IP4, c.pods[0].IP4},
		{"IPv6", "fd00:40::%x", "fd00:20::%x", testbed.NodeIP6, c.pods[1].IP6, c.remotes[0].IP6, c.pods[0].IP6},
	} {
		for _, p := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			// add puts a Service in place and returns its addresses.
			add := func(endpoint netip.Addr, changes ...func(*v1.Service)) (clusterIP, nodePort, lb string) {
				n++
				port := int32(30100 + n)
				ip := fmt.Sprintf(family.lb, n)
				s := service(nth("shape", n), fmt.Sprintf(family.clusterIP, n), append([]func(*v1.Service){exposed(port), protocol(p), loadBalancer(ip)}, changes...)...)
				c.put(s, slice(s, 8080, at(endpoint)))
				return hostPort(netip.MustParseAddr(s.Spec.ClusterIP), 80), hostPort(family.node, uint16(port)), hostPort(netip.MustParseAddr(ip), 80)
			}
			with := func(name string, from *testbed.Host, to, want string) {
				list = append(list, established{fmt.Sprintf("%s %s, %s", family.name, p, name), from, to, p, want})
			}
			pod, near, far := c.pods[0], c.pods[1].Name, c.remotes[0].Name
			vip, nodePort, lb := add(family.near)
			with("pod to a pod here", pod.Host, vip, near)
			with("pod to a NodePort, pod here", pod.Host, nodePort, near)
			with("outside to a NodePort, pod here", c.External, nodePort, near)
			with("outside to a load balancer address, pod here", c.External, lb, near)
			with("node to a pod here", c.Node, vip, near)
			vip, nodePort, _ = add(family.far)
			with("pod to a pod elsewhere", pod.Host, vip, far)
			with("outside to a NodePort, pod elsewhere", c.External, nodePort, far)
			with("node to a pod elsewhere", c.Node, vip, far)
			vip, _, _ = add(family.itself)
			with("pod to itself", pod.Host, vip, pod.Name)
			vip, nodePort, _ = add(family.node)
			with("pod to the node", pod.Host, vip, c.Node.Name)
			with("outside to a NodePort, node", c.External, nodePort, c.Node.Name)
			with("node to itself", c.Node, vip, c.Node.Name)
			_, nodePort, lb = add(family.near, externalLocal)
			with("outside to a NodePort, local policy", c.External, nodePort, near)
			with("outside to a load balancer address, local policy", c.External, lb, near)
			vip, nodePort, _ = add(family.near, affinity(600))
			with("pod to a pod here, affinity", pod.Host, vip, near)
			with("outside to a NodePort, affinity", c.External, nodePort, near)
			with("directly to a pod here", pod.Host, hostPort(family.near, 8080), near)
			with("directly to a pod elsewhere", pod.Host, hostPort(family.far, 8080), far)
		}
	}
	return list
}

// ctState finds what a cached flow matches of ct_state: value and mask, or names.
var ctState = regexp.MustCompile(`ct_state\(([^)]*)\)`)

// natBits returns what a cached flow matches of ct_state if that includes the snat or dnat bit, which tc flower does not have.
func natBits(line string) string {
	const bits = 0x40 | 0x80 // CS_SRC_NAT, CS_DST_NAT (Open vSwitch: include/openvswitch/packets.h)
	m := ctState.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	_, hex, masked := strings.Cut(m[1], "/")
	mask, err := strconv.ParseUint(hex, 0, 32)
	if masked && err == nil && mask&bits == 0 || !masked && strings.ContainsAny(m[1], "+-") && !strings.Contains(m[1], "nat") {
		return ""
	}
	return m[0]
}

// hashed finds a match of the datapath's hash, with a mask that is not 0.
var hashed = regexp.MustCompile(`dp_hash\([0-9a-fx]+/0x[0-9a-f]+\)`)

// openingInSoftware checks that of the cached flows that open connections, only those stay out of tc that hash packets, match
// the hash or leave the packet to ovs-vswitchd. tc can do none of these.
func (c *cluster) openingInSoftware(t *testing.T) {
	t.Helper()
	out, _ := c.cachedPackets(t)
	n, software := 0, 0
	for line := range strings.Lines(out) {
		if !isIP(line) {
			continue
		}
		if n++; strings.Contains(line, "dp:tc") {
			continue
		}
		software++
		if !strings.Contains(line, "hash(l4") && !strings.Contains(line, "hash(sym_l4") && !strings.Contains(line, "userspace(") && !hashed.MatchString(line) {
			t.Errorf("not offloaded while connections are opened:\n%s", line)
		}
	}
	t.Logf("%d cached flows once connections are open, %d of them are not offloaded", n, software)
}

// logRefusals has ovs-vswitchd log why flows are not offloaded, and the test log that if it fails.
func (c *cluster) logRefusals(t *testing.T) {
	t.Helper()
	for _, command := range [][]string{{"vlog/set", "netdev_offload_tc:file:dbg"}, {"vlog/disable-rate-limit"}} {
		_, err := c.Appctl(command...)
		must(t, err)
	}
	t.Cleanup(func() {
		log, err := os.ReadFile(filepath.Join(c.RunDir, "vswitchd.log"))
		if !t.Failed() || err != nil {
			return
		}
		const most = 20
		n := 0
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "|netdev_offload_tc") && strings.Contains(line, "|DBG|") && n < most {
				n++
				t.Log(line)
			}
		}
	})
}

// What a cached flow is known by, and how many packets it had.
var (
	ufid     = regexp.MustCompile(`ufid:[0-9a-f-]+`)
	nPackets = regexp.MustCompile(`packets:(\d+)`)
)

// cachedPackets returns the cached flows, and how many packets each had.
func (c *cluster) cachedPackets(t *testing.T) (dump string, packets map[string]int) {
	t.Helper()
	dump, err := c.Appctl("dpctl/dump-flows", "-m")
	must(t, err)
	packets = map[string]int{}
	for line := range strings.Lines(dump) {
		if m := nPackets.FindStringSubmatch(line); m != nil {
			packets[ufid.FindString(line)], err = strconv.Atoi(m[1])
			must(t, err)
		}
	}
	return dump, packets
}

// isIP reports whether a cached flow is of IP packets other than neighbour discovery.
func isIP(line string) bool {
	return (strings.Contains(line, "eth_type(0x0800)") || strings.Contains(line, "eth_type(0x86dd)")) && !strings.Contains(line, "proto=58")
}

// No cached flow of an established connection through a Service matches ct_state's snat or dnat bit, which tc flower,
// and so a NIC, does not have. With hardware offload on (make test-offload) the kernel's tc takes all of them.
func TestEstablishedMegaflows(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs)
	if testbed.Offload() {
		c.logRefusals(t)
	}
	list := c.shapesOfConnections(t)
	c.begin()
	for _, serve := range []func(int) (*testbed.Server, error){c.Node.ServeTCP, c.Node.ServeUDP} {
		_, err := serve(8080)
		must(t, err)
	}
	exchange := make([]func() error, len(list))
	for i := range list {
		exchange[i] = list[i].exchange(t, c)
	}
	if testbed.Offload() {
		c.openingInSoftware(t)
	}
	// The flows that the connections use now are those whose packets increase. Emptying the cache instead would show what it
	// needs anew, but with offload that can end Open vSwitch 3.1.0 ("Invalid ukey transition").
	var used map[string]int
	for _, rounds := range []int{1, 3} {
		_, used = c.cachedPackets(t)
		for range rounds {
			for i, e := range list {
				if err := exchange[i](); err != nil {
					t.Fatalf("%s: established, then %v", e.name, err)
				}
			}
		}
	}
	out, now := c.cachedPackets(t)
	flows, forward := 0, 0
	for line := range strings.Lines(out) {
		if id := ufid.FindString(line); !isIP(line) || now[id] == used[id] {
			continue
		}
		flows++
		if _, actions, _ := strings.Cut(line, "actions:"); ctState.MatchString(line) && !strings.Contains(actions, "recirc(") {
			forward++
		}
		if bits := natBits(line); bits != "" {
			t.Errorf("a cached flow matches %s:\n%s", bits, line)
		}
		if testbed.Offload() && !strings.Contains(line, "dp:tc") {
			t.Errorf("not offloaded:\n%s", line)
		}
	}
	t.Logf("%d kinds of connection have %d cached flows, %d of them forward", len(list), flows, forward)
	if forward < len(list) {
		t.Errorf("%d cached flows forward packets of %d kinds of connection:\n%s", forward, len(list), out)
	}
}
