//go:build linux

package packets

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// pinger sends echo requests of its own making, with an identifier that no other has, and reads the answers as they arrive.
type pinger struct {
	fd   int
	like netip.Addr
	id   uint16
}

var lastPinger uint16

func newPinger(t *testing.T, from *testbed.Host, like netip.Addr) *pinger {
	t.Helper()
	lastPinger += 7
	p := &pinger{like: like, id: 0x4000 + lastPinger}
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if like.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	must(t, from.Do(func() (err error) {
		if p.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto); err != nil {
			return err
		}
		if like.Is6() {
			if err = unix.SetsockoptInt(p.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1); err != nil {
				return err
			}
		}
		return unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)
	}))
	t.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (p *pinger) send(t *testing.T, to netip.Addr, seq uint16, payload []byte) {
	t.Helper()
	msg := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(msg[4:], p.id)
	binary.BigEndian.PutUint16(msg[6:], seq)
	msg = append(msg, payload...)
	var addr unix.Sockaddr
	if to.Is6() { // the kernel adds the checksum
		msg[0], addr = 128, &unix.SockaddrInet6{Addr: to.As16()}
	} else {
		msg[0], addr = 8, &unix.SockaddrInet4{Addr: to.As4()}
		binary.BigEndian.PutUint16(msg[2:], checksum(msg))
	}
	must(t, unix.Sendto(p.fd, msg, 0, addr))
}

// echo is an answer.
type echo struct {
	from    netip.Addr
	ttl     int
	seq     uint16
	payload []byte
}

// next returns the next answer within a time; nil: there is none. The kernel gives an ICMPv6 message with a wrong checksum to no
// socket.
func (p *pinger) next(t *testing.T, within time.Duration) *echo {
	t.Helper()
	b, oob := make([]byte, 9000), make([]byte, 200)
	for end := time.Now().Add(within); ; {
		wait := max(1, time.Until(end).Microseconds())
		must(t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: wait / 1e6, Usec: wait % 1e6}))
		n, oobn, _, from, err := unix.Recvmsg(p.fd, b, oob, 0)
		if err == unix.EAGAIN || err == unix.EINTR {
			if time.Now().After(end) {
				return nil
			}
			continue
		}
		must(t, err)
		msg, e, reply := b[:n], &echo{}, byte(129)
		switch a := from.(type) {
		case *unix.SockaddrInet4:
			e.from, e.ttl, reply, msg = netip.AddrFrom4(a.Addr), int(msg[8]), 0, msg[int(msg[0]&15)*4:]
			if checksum(msg) != 0 {
				t.Errorf("from %s: wrong checksum of % x", e.from, msg)
			}
		case *unix.SockaddrInet6:
			e.from = netip.AddrFrom16(a.Addr)
			control, err := unix.ParseSocketControlMessage(oob[:oobn])
			must(t, err)
			for _, c := range control {
				if c.Header.Level == unix.IPPROTO_IPV6 && c.Header.Type == unix.IPV6_HOPLIMIT {
					e.ttl = int(binary.NativeEndian.Uint32(c.Data))
				}
			}
		}
		if msg[0] == reply && binary.BigEndian.Uint16(msg[4:]) == p.id {
			e.seq, e.payload = binary.BigEndian.Uint16(msg[6:]), bytes.Clone(msg[8:])
			return e
		}
	}
}

// answered pings an address, and returns the answer; nil: there is none.
func (p *pinger) answered(t *testing.T, to netip.Addr, seq uint16, payload []byte, within time.Duration) *echo {
	t.Helper()
	p.send(t, to, seq, payload)
	for {
		if e := p.next(t, within); e == nil || e.seq == seq {
			return e
		}
	}
}

const silence = 300 * time.Millisecond // in which an answer would have come

// answersPing checks that an address answers a ping, and as RFC 792 has it.
func (c *cluster) answersPing(t *testing.T, from *testbed.Host, to string, ttl int) {
	t.Helper()
	addr, payload := netip.MustParseAddr(to), []byte("what is sent comes back, to the last odd byte")
	p := newPinger(t, from, addr)
	var e *echo
	for seq := uint16(1); e == nil && seq < 20; seq++ { // the neighbours are found by the first
		e = p.answered(t, addr, seq, payload, silence)
	}
	switch {
	case e == nil:
		t.Errorf("%s: ping %s: no answer", from.Name, to)
	case e.from != addr || e.ttl != ttl && ttl != 0 || !bytes.Equal(e.payload, payload):
		t.Errorf("%s: ping %s: from %s, TTL %d (want %d), %q", from.Name, to, e.from, e.ttl, ttl, e.payload)
	}
}

func (c *cluster) noPing(t *testing.T, from *testbed.Host, to string, payload int) {
	t.Helper()
	addr := netip.MustParseAddr(to)
	if e := newPinger(t, from, addr).answered(t, addr, 1, make([]byte, payload), silence); e != nil {
		t.Errorf("%s: ping %s is answered by %s, TTL %d", from.Name, to, e.from, e.ttl)
	}
}

// kernelRules returns what is in the kernel's tables on the node, as nft and iptables print it.
func (c *cluster) kernelRules(t *testing.T) (text string) {
	t.Helper()
	programs := [][]string{{"nft", "-s", "list", "ruleset"}}
	if hasIPTables() {
		programs = append(programs, []string{"iptables-save"}, []string{"ip6tables-save"})
	}
	for _, argv := range programs {
		out, err := c.Exec(c.Node, argv...)
		must(t, err)
		text += out
	}
	return text
}

// left checks that nothing of the pings is left in the kernel's tables or on the switch.
func (c *cluster) left(t *testing.T) {
	t.Helper()
	text := c.kernelRules(t)
	if c.bridged() {
		for _, command := range []string{"dump-flows", "dump-meters"} {
			out, err := c.Ofctl("-O", "OpenFlow15", command, c.Bridge)
			must(t, err)
			text += out
		}
	}
	for _, trace := range []string{"echo-request", "icmp_type", "icmp", "ping", "meter="} {
		if strings.Contains(text, trace) {
			t.Errorf("after cleanup there is %q:\n%s", trace, text)
		}
	}
}

// pingPlanes are the data planes that answer pings.
var pingPlanes = []struct {
	name    string
	options testbed.Options
	flags   []string
}{
	{"ovs", testbed.Options{}, []string{"--gateway-mac", testbed.GatewayMAC}},
	{"nftables", testbed.Options{Plane: testbed.Linux}, []string{"--mode", "nftables"}},
	{"iptables", testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}},
}

// The addresses of Services answer pings with --answer-ping: whoever the Service serves there gets an answer, and nobody else.
// (issue 46, docs/decisions/answered-pings.md)
func TestAnswerPing(t *testing.T) {
	for _, plane := range pingPlanes {
		t.Run(plane.name, func(t *testing.T) {
			if plane.name == "iptables" {
				needsIPTables(t)
			}
			c := newCluster(t, plane.options, append(plane.flags, "--service-cidr", serviceCIDRs, "--answer-ping")...)
			testAnswerPing(t, c)
		})
	}
}

func testAnswerPing(t *testing.T, c *cluster) {
	pod, end, away := c.pods[0].Host, c.pods[1], c.remotes[0]
	ranges := func(list ...string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	two := func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP})
	}
	four := service("four", "40.0.0.1", two, external("20.0.0.5"), loadBalancer("20.0.0.6"))
	six := service("six", "fd00:40::1", two, external("fd00:20::5"), loadBalancer("fd00:20::6"))
	none4, none6 := service("none4", "40.0.0.2", external("20.0.0.7")), service("none6", "fd00:40::2")
	local4 := service("local4", "40.0.0.3", loadBalancer("20.0.0.8", externalLocal))
	local6 := service("local6", "fd00:40::3", loadBalancer("fd00:20::8", externalLocal))
	ranged4 := service("ranged4", "40.0.0.4", loadBalancer("20.0.0.9", ranges("10.0.0.0/16", c.pods[2].IP4.String()+"/32")))
	ranged6 := service("ranged6", "fd00:40::4", loadBalancer("fd00:20::9", ranges("fd00:a::/64", "fd00:a::/80")))
	// The same address as ranged4's, with other ranges, one in another.
	shared := service("shared", "40.0.0.5", loadBalancer("20.0.0.9", ranges("10.0.0.0/24", "192.0.2.0/24")))
	shared.Spec.Ports[0].Port = 81
	slices4 := slice(four, 8080, at(end.IP4))
	c.begin(four, slices4, six, slice(six, 8080, at(end.IP6)), none4, none6,
		local4, slice(local4, 8080, at(away.IP4)), local6, slice(local6, 8080, at(away.IP6)),
		ranged4, slice(ranged4, 8080, at(end.IP4)), ranged6, slice(ranged6, 8080, at(end.IP6)),
		shared, slice(shared, 8080, at(end.IP4)))

	for _, to := range []string{"40.0.0.1", "20.0.0.5", "20.0.0.6", "fd00:40::1", "fd00:20::5", "fd00:20::6"} {
		c.answersPing(t, pod, to, 64)
		c.answersPing(t, end.Host, to, 64) // which is the endpoint
		c.answersPing(t, c.External, to, 63)
	}
	for _, to := range []string{"40.0.0.1", "fd00:40::1"} {
		c.answersPing(t, c.Node, to, 64)
	}
	for _, to := range []string{"40.0.0.2", "20.0.0.7", "fd00:40::2", "40.0.0.77", "fd00:40::77"} {
		c.noPing(t, pod, to, 20)
		c.noPing(t, c.External, to, 20)
	}
	for _, to := range []string{"20.0.0.8", "fd00:20::8"} { // served for pods, not for clients from outside
		c.answersPing(t, pod, to, 64)
		c.noPing(t, c.External, to, 20)
	}
	for _, to := range []string{"20.0.0.9", "fd00:20::9"} {
		c.answersPing(t, pod, to, 64)
		c.answersPing(t, c.pods[2].Host, to, 64)
		c.noPing(t, c.External, to, 20)
	}
	c.answersPing(t, pod, testbed.NodeIP4.String(), 0) // by the node itself

	t.Run("fragments", func(t *testing.T) {
		if c.bridged() {
			c.noPing(t, pod, "40.0.0.1", 3000)
			c.noPing(t, pod, "fd00:40::1", 3000)
		}
	})

	t.Run("endpoint gone and back", func(t *testing.T) {
		addr := netip.MustParseAddr("40.0.0.1")
		p := newPinger(t, pod, addr)
		if p.answered(t, addr, 1, nil, silence) == nil {
			t.Error("no answer while there is an endpoint")
		}
		c.put(slice(four, 8080))
		c.settle()
		c.eventually("no answer without an endpoint", func() error {
			if e := p.answered(t, addr, 2, nil, silence); e != nil {
				return fmt.Errorf("answered by %s", e.from)
			}
			return nil
		})
		c.agent.Kill()
		c.run()
		c.settle()
		c.noPing(t, pod, "40.0.0.1", 20)
		c.put(slices4)
		c.settle()
		c.answersPing(t, pod, "40.0.0.1", 64)
		if e := p.answered(t, addr, 3, nil, silence); e == nil {
			t.Error("the same client gets no answer when the endpoint is back")
		}
	})

	t.Run("no connection is tracked, no listener reached", func(t *testing.T) {
		if c.bridged() && !onKernelDatapath() {
			out, err := c.Appctl("dpctl/dump-conntrack")
			must(t, err)
			if strings.Contains(out, "icmp") {
				t.Errorf("conntrack entries are left:\n%s", out)
			}
		}
		_, err := c.Node.ServeTCP(8099)
		must(t, err)
		for _, to := range []string{"40.0.0.1:8099", "20.0.0.5:8099", "[fd00:40::1]:8099", "[fd00:20::5]:8099"} {
			for _, from := range []*testbed.Host{pod, c.External} {
				ctx, cancel := context.WithTimeout(c.ctx, time.Second)
				if a, err := from.Ask(ctx, "tcp", to); err == nil {
					t.Errorf("%s reaches a listener of the node at %s: %+v", from.Name, to, a)
				}
				cancel()
			}
		}
	})

	t.Run("nothing differs", func(t *testing.T) {
		if out, errOut, status := c.nkp("diff", "--socket", c.socket()); status != 0 {
			t.Errorf("diff ends with %d: %s%s", status, out, errOut)
		}
	})

	t.Run("rate", func(t *testing.T) {
		const sent = 6000
		addr := netip.MustParseAddr("40.0.0.1")
		p := newPinger(t, pod, addr)
		began := time.Now()
		for seq := range uint16(sent) {
			p.send(t, addr, seq, nil)
		}
		seen := map[uint16]bool{}
		for e := p.next(t, time.Second); e != nil; e = p.next(t, silence) {
			seen[e.seq] = true
		}
		most := 1000 + int(1000*time.Since(began).Seconds()) // the burst, and the rate
		if len(seen) == 0 || len(seen) > most || len(seen) == sent {
			t.Errorf("%d of %d are answered, at most %d may be", len(seen), sent, most)
		}
	})

	must(t, c.agent.Stop(syscall.SIGTERM))
	args := []string{"cleanup", "--socket", c.socket()}
	if c.bridged() {
		args = append(args, "--ovsdb", c.DB(), "--bridge", c.Bridge)
	}
	if out, errOut, status := c.nkp(args...); status != 0 {
		t.Fatalf("cleanup ends with %d: %s%s", status, out, errOut)
	}
	c.left(t)
	c.noPing(t, pod, "40.0.0.1", 20)
}

// Without --answer-ping nothing of pings is there: also after a run with the flag, and a stranger's meter at the number of one stays.
func TestAnswerPingOff(t *testing.T) {
	for _, plane := range pingPlanes {
		t.Run(plane.name, func(t *testing.T) {
			if plane.name == "iptables" {
				needsIPTables(t)
			}
			c := newCluster(t, plane.options, append(plane.flags, "--service-cidr", serviceCIDRs)...)
			web := service("web", "40.0.0.1")
			c.begin(web, slice(web, 8080, at(c.pods[1].IP4)))
			before := c.installed(t)

			again := func(flags ...string) {
				c.agent.Kill()
				c.runWith(flags...)
				if len(flags) == 0 {
					c.settle()
				}
			}
			again("--answer-ping")
			c.answersPing(t, c.pods[0].Host, "40.0.0.1", 64)
			again()
			if after := c.installed(t); !slices.Equal(after, before) {
				t.Errorf("without the flag again there is more: %q, less: %q", without(after, before), without(before, after))
			}
			if !c.bridged() {
				return
			}

			meter := func(n int) string { return fmt.Sprintf("meter=%d", 0x6e6b<<16+0xff00+n) }
			add := func(n int, rest string) {
				_, err := c.Ofctl("-O", "OpenFlow15", "add-meter", c.Bridge, meter(n)+","+rest)
				must(t, err)
			}
			ours := "pktps,burst,stats,band=type=drop,rate=1000,burst_size=1000"
			dumped := func(when string, want ...int) {
				t.Helper()
				out, err := c.Ofctl("dump-meters", c.Bridge)
				must(t, err)
				for _, n := range []int{1, 8, 9} {
					if strings.Contains(out, meter(n)+" ") != slices.Contains(want, n) {
						t.Errorf("%s, the meters %v should be there of 1, 8 and 9:\n%s", when, want, out)
					}
				}
			}
			stop := func() { must(t, c.agent.Stop(syscall.SIGTERM)) }
			add(1, ours) // left by a release that knows no pings
			add(9, "pktps,band=type=drop,rate=7")
			again()
			dumped("after a restart", 9)
			add(1, ours)
			stop()
			c.cleanup(t)
			dumped("after cleanup", 9)

			add(1, ours)
			add(8, ours) // another nkp's, which has another --meter
			_, err := c.Ofctl("-O", "OpenFlow15", "add-flow", c.Bridge,
				"table=200,actions="+strings.Replace(meter(8), "=", ":", 1)+",normal")
			must(t, err)
			c.runWith()
			c.settle()
			dumped("after a start beside another nkp", 1, 8, 9)
			stop()
			c.cleanup(t)
			dumped("after cleanup beside another nkp", 1, 8, 9)
		})
	}
}

func without(list, these []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(these, s) })
}

// installed returns the sorted lines of what is in the kernel's tables and on the switch, without counters.
func (c *cluster) installed(t *testing.T) []string {
	t.Helper()
	text := c.kernelRules(t)
	if c.bridged() {
		for _, argv := range [][]string{{"--no-stats", "dump-flows"}, {"dump-groups"}, {"dump-meters"}} {
			out, err := c.Ofctl(append(argv, c.Bridge)...)
			must(t, err)
			text += out
		}
	}
	counters := regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]| \(xid=.*\)`)
	return slices.Sorted(strings.Lines(counters.ReplaceAllString(text, "")))
}
