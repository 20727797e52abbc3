//go:build linux

package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	narrow  = 1300   // MTU in bytes of the path that is too narrow; of all others 1500
	tooBig  = 1400   // bytes of a datagram
	several = 20_000 // bytes of several TCP segments
)

// route is a way through a Service.
type route struct {
	name   string
	from   *testbed.Host
	to     []netip.AddrPort // a frontend of each family
	end    *testbed.Pod     // the endpoint, which listens on port 8080
	ttl    int              // too little to reach it, if a router is on the way
	masked bool             // the endpoint sees the node's address
}

// ICMP errors (row 39 of docs/semantics.md) reach the sender of the packet that they quote, in the sender's own terms: an
// endpoint's refusal, a path that is too narrow for the client's packets or for the endpoint's, a hop limit that ran out. Linux
// heeds an error only if it finds the socket by the quoted packet. TCP gets on by smaller packets then; UDP sockets show the error.
//
// A pod that reaches itself through its own Service crosses no router where the bridge delivers straight: no path is too narrow
// then but by the pod's own MTU, which it knows. Through the gateway, and with iptables, it does.
func TestICMPErrors(t *testing.T) {
	for _, v := range []struct {
		name    string
		options testbed.Options
		flags   []string
	}{
		{"ovs", testbed.Options{}, []string{"--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs}},
		{"ovs by the gateway", testbed.Options{}, []string{"--gateway-mac", testbed.GatewayMAC, "--service-cidr", serviceCIDRs, "--local-delivery", "off"}},
		{"iptables", testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			ovs := v.options.Plane != testbed.Linux
			if v.name != "ovs" {
				nightly.Only(t, "the plane of most nodes is in the gate")
			}
			if !ovs {
				needsIPTables(t)
			}
			c := newCluster(t, v.options, v.flags...)
			router, device := c.Router, c.RouterDevice() // between a pod and itself
			switch v.name {
			case "ovs":
				router = nil
			case "iptables":
				router, device = c.Node, c.pods[0].Interface
			}
			testICMPErrors(t, c, ovs && !onKernelDatapath(), router, device)
		})
	}
}

// ofQuotedProtocol is what Open vSwitch's own tracker makes of the MTU when it translates the destination of a Packet Too Big
// that quotes UDP: it takes the MTU's lower half for the checksum of a UDP header (lib/conntrack.c, nat_packet_ipv6, which
// passes the quoted protocol to lib/packets.c, packet_update_csum128).
func ofQuotedProtocol(mtu uint32, from, to netip.Addr) uint32 {
	sum := ^mtu & 0xffff
	for i := range 8 {
		a, b := from.As16(), to.As16()
		sum += uint32(^binary.BigEndian.Uint16(a[2*i:])) + uint32(binary.BigEndian.Uint16(b[2*i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^sum & 0xffff
}

// testICMPErrors runs on any plane. On the userspace datapath it holds the known limit of pipeline/README.md: where it fails
// because the MTU is right, Open vSwitch has been mended, and the limit goes. Packets of the first pod to itself leave the router by
// the device; nil: they cross none.
func testICMPErrors(t *testing.T, c *cluster, limited bool, router *testbed.Host, device string) {
	pod, end, here := c.pods[0], c.remotes[0], c.pods[1]
	var frontends, nodePorts [][]netip.AddrPort
	for i, e := range []*testbed.Pod{end, here, pod} {
		ip4, ip6 := fmt.Sprint("40.0.0.", i+1), fmt.Sprint("fd00:40::", i+1)
		frontends = append(frontends, []netip.AddrPort{netip.MustParseAddrPort(ip4 + ":80"), netip.MustParseAddrPort("[" + ip6 + "]:80")})
		port := uint16(30080 + i)
		nodePorts = append(nodePorts, []netip.AddrPort{netip.AddrPortFrom(testbed.NodeIP4, port), netip.AddrPortFrom(testbed.NodeIP6, port)})
		for _, proto := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			s4 := service(strings.ToLower(fmt.Sprint("four-", i, proto)), ip4, protocol(proto), exposed(int32(port)))
			s6 := service(strings.ToLower(fmt.Sprint("six-", i, proto)), ip6, protocol(proto), exposed(int32(port)))
			c.put(s4, slice(s4, 8080, at(e.IP4)), s6, slice(s6, 8080, at(e.IP6)))
		}
	}
	c.run()
	c.settle()
	direct := []netip.AddrPort{netip.AddrPortFrom(end.IP4, 8080), netip.AddrPortFrom(end.IP6, 8080)}
	routes := []route{
		{name: "direct", from: pod.Host, to: direct, end: end, ttl: 2},
		{name: "plain", from: pod.Host, to: frontends[0], end: end, ttl: 2},
		{name: "masqueraded", from: c.External, to: nodePorts[0], end: end, ttl: 3, masked: true},
		{name: "from the node", from: c.Node, to: frontends[0], end: end, ttl: 2, masked: true},
		{name: "hairpin", from: pod.Host, to: frontends[2], end: pod, ttl: 1, masked: true},
	}
	routed := routes
	if router == nil {
		routed = routes[:4]
	}
	each := func(what string, routes []route, check func(*testing.T, route, netip.AddrPort)) {
		for _, r := range routes {
			for _, to := range r.to {
				t.Run(fmt.Sprintf("%s/%s/%s", what, r.name, to.Addr()), func(t *testing.T) {
					for _, h := range []*testbed.Host{r.from, r.end.Host} { // what they learned about paths before
						for _, family := range []string{"-4", "-6"} {
							out, err := c.Exec(h, "ip", family, "route", "flush", "cache")
							if err != nil {
								t.Fatal(out, err)
							}
						}
					}
					check(t, r, to)
				})
			}
		}
	}
	// heard checks the error that a socket got.
	heard := func(t *testing.T, s *net.UDPConn, errno syscall.Errno, mtu uint32) {
		t.Helper()
		e, err := icmpErrorOf(s)
		if err != nil || e.errno != errno || e.mtu != mtu {
			t.Errorf("%v, %v; want %v (MTU %d)", e, err, errno, mtu)
		}
	}

	each("port unreachable", routes, func(t *testing.T, r route, to netip.AddrPort) {
		s := r.dialUDP(t, c, to)
		send(t, s, 1)
		heard(t, s, unix.ECONNREFUSED, 0)
	})
	each("time exceeded, UDP", routed, func(t *testing.T, r route, to netip.AddrPort) {
		s := r.dialUDP(t, c, to)
		limitHops(t, s, to.Addr(), r.ttl)
		send(t, s, 1)
		heard(t, s, unix.EHOSTUNREACH, 0)
	})
	server, err := end.ServeTCP(8080)
	must(t, err)
	own, err := pod.ServeTCP(8080)
	must(t, err)
	each("time exceeded, TCP", routed, func(t *testing.T, r route, to netip.AddrPort) {
		s, err := r.from.DialTCP(c.ctx, to.String(), testbed.DialOptions{})
		must(t, err)
		defer s.Close()
		must(t, s.SetDeadline(time.Now().Add(wait.Limit)))
		_, err = s.Read(make([]byte, 100)) // who the server is
		must(t, err)
		limitHops(t, s.(*net.TCPConn), to.Addr(), r.ttl)
		_, err = s.Write([]byte("x"))
		must(t, err)
		if _, err = s.Read(make([]byte, 1)); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("%v; want it to be unreachable", err)
		}
	})
	must(t, errors.Join(server.Close(), own.Close()))

	c.narrow(t, c.Router, end.IP4, "via", testbed.RemoteIP4.String(), "dev", "remote")
	c.narrow(t, c.Router, end.IP6, "via", testbed.RemoteIP6.String(), "dev", "remote")
	if router != nil {
		c.narrow(t, router, pod.IP4, "dev", device)
		c.narrow(t, router, pod.IP6, "dev", device)
	}
	each("too big for the endpoint's side, TCP", routed, func(t *testing.T, r route, to netip.AddrPort) {
		c.transfer(t, r, to, true)
	})
	each("too big for the endpoint's side, UDP", routed, func(t *testing.T, r route, to netip.AddrPort) {
		mtu := uint32(narrow)
		if limited && r.masked && to.Addr().Is6() { // from the node to the client
			mtu = ofQuotedProtocol(mtu, testbed.NodeIP6, r.from.IP6)
		}
		s := r.dialUDP(t, c, to)
		send(t, s, tooBig)
		heard(t, s, unix.EMSGSIZE, mtu)
	})
	for _, ip := range []netip.Addr{end.IP4, end.IP6} {
		_, err := c.Exec(c.Router, "ip", "route", "del", netip.PrefixFrom(ip, ip.BitLen()).String())
		must(t, err)
	}

	c.narrow(t, c.Router, testbed.ExternalIP4, "dev", "external")
	c.narrow(t, c.Router, testbed.ExternalIP6, "dev", "external")
	answers := []route{
		{name: "from another node", from: c.External, to: nodePorts[0], end: end, masked: true},
		{name: "from this node", from: c.External, to: nodePorts[1], end: here, masked: true},
	}
	each("too big for the client's side, TCP", answers, func(t *testing.T, r route, to netip.AddrPort) {
		c.transfer(t, r, to, false)
	})
	each("too big for the client's side, UDP", answers, func(t *testing.T, r route, to netip.AddrPort) {
		mtu, ip := uint32(narrow), r.end.IP(to.Addr())
		if limited && ip.Is6() { // from the frontend to the endpoint
			mtu = ofQuotedProtocol(mtu, to.Addr(), ip)
		}
		in := listenForErrors(t, r.end.Host, netip.AddrPortFrom(ip, 8080))
		send(t, r.dialUDP(t, c, to), 1)
		must(t, in.SetReadDeadline(time.Now().Add(wait.Limit)))
		_, client, err := in.ReadFromUDPAddrPort(make([]byte, 1))
		must(t, err)
		_, err = in.WriteToUDPAddrPort(make([]byte, tooBig), client)
		must(t, err)
		heard(t, in, unix.EMSGSIZE, mtu)
	})
}

// narrow has a router take the path to an address for a narrow one.
func (c *cluster) narrow(t *testing.T, router *testbed.Host, to netip.Addr, way ...string) {
	t.Helper()
	argv := append([]string{"ip", "route", "replace", netip.PrefixFrom(to, to.BitLen()).String()}, way...)
	out, err := c.Exec(router, append(argv, "mtu", fmt.Sprint(narrow))...)
	if err != nil {
		t.Fatal(out, err)
	}
}

// transfer sends several full segments, from the client or to it, and wants its sender to have learned the path's MTU.
func (c *cluster) transfer(t *testing.T, r route, to netip.AddrPort, up bool) {
	t.Helper()
	l, err := r.end.Listen(hostPort(r.end.IP(to.Addr()), 8080))
	must(t, err)
	defer l.Close()
	client, err := r.from.DialTCP(c.ctx, to.String(), testbed.DialOptions{})
	must(t, err)
	defer client.Close()
	server, err := l.Accept()
	must(t, err)
	defer server.Close()
	sender, receiver := server, client
	if up {
		sender, receiver = client, server
	}
	must(t, errors.Join(sender.SetDeadline(time.Now().Add(wait.Limit)), receiver.SetDeadline(time.Now().Add(wait.Limit))))
	_, err = sender.Write(make([]byte, several)) // into the socket's buffer
	must(t, err)
	n, err := io.ReadFull(receiver, make([]byte, several))
	mtu := option(t, sender.(*net.TCPConn), to.Addr(), unix.IP_MTU, unix.IPV6_MTU)
	if err != nil || mtu != narrow {
		t.Errorf("%d of %d bytes came, %v; the sender takes the path's MTU for %d, want %d", n, several, err, mtu, narrow)
	}
}

// dialUDP makes a client's socket, which shows ICMP errors.
func (r route) dialUDP(t *testing.T, c *cluster, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	s, err := r.from.DialUDP(c.ctx, to.String(), testbed.DialOptions{})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s.(*net.UDPConn)
}

// listenForErrors makes a server's socket that shows ICMP errors.
func listenForErrors(t *testing.T, h *testbed.Host, addr netip.AddrPort) *net.UDPConn {
	t.Helper()
	var s *net.UDPConn
	must(t, h.Do(func() (err error) {
		s, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	}))
	t.Cleanup(func() { s.Close() })
	setOption(t, s, addr.Addr(), unix.IP_RECVERR, unix.IPV6_RECVERR, 1)
	return s
}

// limitHops sets the TTL or hop limit, and has the socket report ICMP errors.
func limitHops(t *testing.T, s syscall.Conn, like netip.Addr, hops int) {
	t.Helper()
	setOption(t, s, like, unix.IP_TTL, unix.IPV6_UNICAST_HOPS, hops)
	setOption(t, s, like, unix.IP_RECVERR, unix.IPV6_RECVERR, 1)
}

func send(t *testing.T, s net.Conn, bytes int) {
	t.Helper()
	_, err := s.Write(make([]byte, bytes))
	must(t, err)
}

// setOption sets the one of two socket options that is for the family.
func setOption(t *testing.T, s syscall.Conn, like netip.Addr, v4, v6, value int) {
	t.Helper()
	level, name := familyOption(like, v4, v6)
	control(t, s, func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) })
}

// option reads it.
func option(t *testing.T, s syscall.Conn, like netip.Addr, v4, v6 int) (value int) {
	t.Helper()
	level, name := familyOption(like, v4, v6)
	control(t, s, func(fd int) (err error) {
		value, err = unix.GetsockoptInt(fd, level, name)
		return err
	})
	return value
}

func familyOption(like netip.Addr, v4, v6 int) (level, name int) {
	if like.Is4() {
		return unix.IPPROTO_IP, v4
	}
	return unix.IPPROTO_IPV6, v6
}

func control(t *testing.T, s syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := s.SyscallConn()
	must(t, err)
	var inner error
	must(t, errors.Join(raw.Control(func(fd uintptr) { inner = f(int(fd)) }), inner))
}

// icmpError is an ICMP error as a socket has it (linux/errqueue.h, struct sock_extended_err).
type icmpError struct {
	errno      syscall.Errno
	icmp, code uint8
	mtu        uint32 // that it asks for, or 0
}

func (e icmpError) String() string {
	return fmt.Sprintf("ICMP type %d code %d (%v, MTU %d)", e.icmp, e.code, e.errno, e.mtu)
}

// icmpErrorOf waits for the next ICMP error of a socket.
func icmpErrorOf(s *net.UDPConn) (e icmpError, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return e, err
	}
	if err := s.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		return e, err
	}
	data, oob := make([]byte, 2048), make([]byte, 512)
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		var n int
		_, n, _, _, inner = unix.Recvmsg(int(fd), data, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errors.Is(inner, unix.EAGAIN) {
			return false
		}
		oob = oob[:max(n, 0)]
		return true
	})
	if err = errors.Join(err, inner); err != nil {
		return e, err
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return e, err
	}
	for _, m := range messages {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (v4 || v6) && len(m.Data) >= 16 {
			if origin := m.Data[4]; origin != unix.SO_EE_ORIGIN_ICMP && origin != unix.SO_EE_ORIGIN_ICMP6 {
				return e, fmt.Errorf("an error of origin %d, not of ICMP", origin)
			}
			return icmpError{
				errno: syscall.Errno(binary.NativeEndian.Uint32(m.Data)), icmp: m.Data[5], code: m.Data[6],
				mtu: binary.NativeEndian.Uint32(m.Data[8:]),
			}, nil
		}
	}
	return e, errors.New("the socket's error queue has no error")
}
