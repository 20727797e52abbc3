//go:build linux

package packets

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// 1,000 connections of known size to three Services, of both families, near and far, from a pod and from outside,
// masqueraded and not, delivered straight or through the gateway: nkp counts the connections (of TCP to a ClusterIP every SYN,
// should a client send one again), and packets and bytes as they are on the wire. Neither a restart of nkp nor endpoints that
// come and go change what was counted.
func TestCounters(t *testing.T) {
	for _, delivery := range []string{"on", "off"} {
		t.Run("local-delivery="+delivery, func(t *testing.T) {
			if delivery == "off" {
				nightly.Only(t, "the gate counts what is delivered straight")
			}
			testCounters(t, delivery)
		})
	}
}

func testCounters(t *testing.T, delivery string) {
	near, far := service("near", "40.0.0.1"), service("far", "40.0.0.2", exposed(30002))
	v6 := service("six", "fd00:40::1", affinity(60))
	c := newCluster(t, testbed.Options{}, "--local-delivery", delivery)
	c.servePods(t)
	c.put(near, far, v6)
	c.run()
	c.put(slice(near, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...), slice(far, 8080, ats(c.remotes[0].IP4, c.remotes[1].IP4)...),
		slice(v6, 8080, ats(c.pods[1].IP6, c.remotes[1].IP6)...))
	c.settle()

	client := c.pods[0].Host
	tap, outside := listen(t, client), listen(t, c.External)
	node := testbed.NodeIP4.String()
	for _, x := range []struct {
		from       *testbed.Host
		to         string
		n, payload int
	}{
		{client, "40.0.0.1:80", 400, 100}, {client, "40.0.0.2:80", 250, 5000}, {client, node + ":30002", 60, 300},
		{c.External, node + ":30002", 40, 300}, {client, "[fd00:40::1]:80", 250, 1500},
	} {
		c.exchange(t, x.from, x.to, x.n, x.payload)
	}
	for _, from := range []*testbed.Host{client, c.External} {
		c.direct(t, from)() // after all that is to be counted
	}
	syns := func(ip string, connections uint64) uint64 {
		n := tap.of(t, ip).syns
		if n < connections {
			t.Errorf("%d SYNs to %s, for %d connections", n, ip, connections)
		}
		return n
	}
	want := map[string]uint64{"near": syns("40.0.0.1", 400), "far": syns("40.0.0.2", 250) + 100, "six": syns("fd00:40::1", 250)}
	wire := map[string]traffic{
		"near": tap.of(t, "40.0.0.1"), "far": tap.of(t, "40.0.0.2").plus(tap.of(t, node)).plus(outside.of(t, node)), "six": tap.of(t, "fd00:40::1"),
	}
	counted := c.awaitCounters(t, want)
	for name, w := range wire {
		k := counted[name]
		within(t, name+": in", sum{k.Packets.In, k.Bytes.In}, w.in)
		within(t, name+": out", sum{k.Packets.Out, k.Bytes.Out}, w.out)
	}
	for _, s := range c.services(t).Services {
		if strings.Contains(s.CountersNote, "hardware offload") != testbed.Offload() {
			t.Errorf("offload: %v; `services` says about the counters of %s: %q", testbed.Offload(), s.Name, s.CountersNote)
		}
	}

	// One endpoint less, none at all, and back; a new start of nkp.
	c.put(slice(near, 8080, at(c.pods[1].IP4)))
	c.settle()
	c.put(slice(near, 8080))
	c.settle()
	c.put(slice(near, 8080, at(c.pods[2].IP4)))
	c.settle()
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.inForce(t)
	after := c.counters(t)
	for name := range want {
		if fmt.Sprint(text(after[name])) != fmt.Sprint(text(counted[name])) {
			t.Errorf("%s: counted %v before the endpoints changed and nkp was restarted, %v after", name, text(counted[name]), text(after[name]))
		}
	}
	c.exchange(t, client, "40.0.0.1:80", 10, 10)
	want["near"] = syns("40.0.0.1", 410)
	c.awaitCounters(t, want)
}

// A client that repeats itself before it is answered opens one connection, and what nobody answers is counted as it comes;
// who is kept out opens none.
func TestCountersBeforeTheAnswer(t *testing.T) {
	udp := service("udp", "40.0.0.1", protocol(v1.ProtocolUDP))
	ranged := service("ranged", "40.0.0.2", loadBalancer("20.0.0.2", func(s *v1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.168.77.0/24"}
	}))
	none := service("none", "40.0.0.3")
	c := start(t, udp, ranged, none)
	c.put(slice(udp, 9999, at(c.remotes[0].IP4)), slice(ranged, 8080, at(c.remotes[0].IP4)))
	// Nobody listens at port 9999, and nobody says so: what is sent there stays unanswered.
	_, err := c.Exec(c.remotes[0].Host, "ip", "route", "add", "blackhole", c.pods[0].IP4.String()+"/32")
	must(t, err)
	c.settle()
	conn, err := c.pods[0].DialUDP(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer conn.Close()
	const datagrams, size = 7, 100
	for i := range datagrams {
		_, err := conn.Write(make([]byte, size))
		must(t, err)
		if i > 0 {
			continue
		}
		c.tracked("40.0.0.1") // a datagram that comes before counts as a connection, too
	}
	c.unanswered(t, c.pods[0].Host, "tcp", "20.0.0.2:80", c.direct(t, c.pods[0].Host))
	refused(t, c, c.pods[0].Host, "40.0.0.3:80")
	k := c.awaitCounters(t, map[string]uint64{"udp": 1, "ranged": 0, "none": 0})["udp"]
	const header = 20 + 8
	if k.Packets.In != datagrams || k.Bytes.In != datagrams*(size+header) || k.Packets.Out != 0 {
		t.Errorf("counted %v; sent were %d datagrams, %d bytes", text(k), datagrams, datagrams*(size+header))
	}
}

// services asks the running nkp for its Service ports.
func (c *cluster) services(t *testing.T, args ...string) api.ServiceList {
	t.Helper()
	out, errOut, status := c.nkp(append([]string{"services", "-o", "json", "--socket", c.socket()}, args...)...)
	if status != 0 {
		t.Fatalf("services ends with %d: %s", status, errOut)
	}
	var list api.ServiceList
	must(t, json.Unmarshal([]byte(out), &list))
	return list
}

// counters returns what is counted, by the name of the Service.
func (c *cluster) counters(t *testing.T) (by map[string]k8s.Counters) {
	t.Helper()
	c.eventually("counters", func() error { // without them while the switch is slow to answer
		by = map[string]k8s.Counters{}
		for _, s := range c.services(t).Services {
			if s.Counters == nil {
				return fmt.Errorf("%s has none: %s", s.Name, s.CountersNote)
			}
			by[s.Name] = *s.Counters
		}
		return nil
	})
	return by
}

// awaitCounters waits until as many connections are counted as wanted. The switch has heard of all packets from its datapath by then.
func (c *cluster) awaitCounters(t *testing.T, want map[string]uint64) (now map[string]k8s.Counters) {
	t.Helper()
	c.uncached(t) // what a cached flow has counted goes to the switch with its end
	c.eventually("the counters", func() error {
		now = c.counters(t)
		for name, n := range want {
			if got := now[name].Connections; got > n || got < least(n) {
				return fmt.Errorf("%s: %d connections counted, there were %d", name, got, n)
			}
		}
		return nil
	})
	return now
}

func text(k k8s.Counters) string {
	return fmt.Sprintf("%d connections, packets %+v, bytes %+v", k.Connections, *k.Packets, *k.Bytes)
}

// least is how many of n connections are counted at least: all, but for one in a hundred with hardware offload (docs/offload.md).
func least(n uint64) uint64 {
	if testbed.Offload() {
		return n - (n+99)/100
	}
	return n
}

// within reports a direction that was counted more than 1 % off. With hardware offload each segment of a merged packet counts, with
// headers of its own, and up to 14 bytes of each too few.
func within(t *testing.T, what string, got, want sum) {
	t.Helper()
	most, fewest, header := want.packets, want.bytes, uint64(0)
	if testbed.Offload() {
		const segments, headers = 5, 20 + 32 // of the largest payload; IPv4 and TCP with time stamps
		most, fewest, header = segments*want.packets, want.bytes-min(want.bytes, 14*got.packets), headers
	}
	off := func(n, low, high uint64) bool {
		return high == 0 || float64(n) < 0.99*float64(low) || float64(n) > 1.01*float64(high)
	}
	if off(got.packets, want.packets, most) || off(got.bytes, fewest, want.bytes+header*(got.packets-min(got.packets, want.packets))) {
		t.Errorf("%s: counted %+v, on the wire %+v", what, got, want)
	} else {
		t.Logf("%s: counted %+v, on the wire %+v", what, got, want)
	}
}

// exchange opens n connections, sends payload bytes over each and waits until they have come back.
func (c *cluster) exchange(t *testing.T, from *testbed.Host, to string, n, payload int) {
	t.Helper()
	data := make([]byte, payload)
	for i := range data {
		data[i] = 'x'
	}
	data[payload-1] = '\n'
	var wg sync.WaitGroup
	work := make(chan struct{})
	for range 8 {
		wg.Go(func() { // ends when work is closed
			for range work {
				k, err := from.Hold(c.ctx, to, testbed.DialOptions{Reset: true})
				if err != nil {
					t.Errorf("%s: %v", to, err)
					continue
				}
				go k.Conn().Write(data) // ends with the connection; an echo that is not read holds it up
				if _, err := io.ReadFull(k.Conn(), make([]byte, payload)); err != nil {
					t.Errorf("%s: %v", to, err)
				}
				k.Close()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}

// sum is what was seen in one direction.
type sum struct{ packets, bytes uint64 }

// traffic is what a host has exchanged with one address; in is what it sent, to the Service, syns how often it began.
type traffic struct {
	in, out sum
	syns    uint64
}

func (x traffic) plus(y traffic) traffic {
	x.in.packets, x.in.bytes = x.in.packets+y.in.packets, x.in.bytes+y.in.bytes
	x.out.packets, x.out.bytes = x.out.packets+y.out.packets, x.out.bytes+y.out.bytes
	return x
}

// tap sees every IP packet of a host (AF_PACKET), except for neighbour discovery.
type tap struct {
	mu    sync.Mutex // protects by
	by    map[netip.Addr]traffic
	empty atomic.Int64 // times that the socket was found to hold no more
}

// listen begins to count what a host sends and gets, by the address of the other side.
func listen(t *testing.T, h *testbed.Host) *tap {
	t.Helper()
	fd := -1
	must(t, h.Do(func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		if err == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
		}
		return err
	}))
	x := &tap{by: map[netip.Addr]traffic{}}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch n, from, err := unix.Recvfrom(fd, b, 0); {
			case err == nil:
				x.saw(b[:n], from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING)
			case errors.Is(err, unix.EAGAIN):
				x.empty.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		unix.Close(fd)
	})
	return x
}

// saw counts one packet.
func (x *tap) saw(b []byte, sent bool) {
	var src, dst netip.Addr
	var size uint64
	var tcp []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		size = uint64(binary.BigEndian.Uint16(b[2:]))
		if b[9] == unix.IPPROTO_TCP {
			tcp = b[min(int(b[0]&0xf)*4, len(b)):]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
		size = 40 + uint64(binary.BigEndian.Uint16(b[4:]))
		if b[6] == unix.IPPROTO_TCP {
			tcp = b[40:]
		}
		if b[6] == unix.IPPROTO_ICMPV6 && len(b) > 40 && (b[40] == 135 || b[40] == 136) { // neighbour discovery
			return
		}
	default:
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if sent {
		k := x.by[dst]
		k.in.packets, k.in.bytes = k.in.packets+1, k.in.bytes+size
		if len(tcp) >= 20 && tcp[13]&0x12 == 0x02 { // RFC 9293 §3.1: SYN without ACK
			k.syns++
		}
		x.by[dst] = k
	} else {
		k := x.by[src]
		k.out.packets, k.out.bytes = k.out.packets+1, k.out.bytes+size
		x.by[src] = k
	}
}

// of returns the traffic with an address until now.
func (x *tap) of(t *testing.T, ip string) traffic {
	t.Helper()
	before := x.empty.Load()
	wait.For(t, "the tap's socket is empty", func() bool { return x.empty.Load() > before })
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.by[netip.MustParseAddr(ip)]
}
