//go:build linux

package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// forgets is a cluster with one UDP Service whose flushes can be disturbed.
func forgets(t *testing.T) (*cluster, *interceptor, *svc) {
	t.Helper()
	c := newCluster(t)
	z := c.intercept(t)
	for _, p := range c.servers {
		_, err := p.Host.ServeUDP(serverPort)
		must(t, err)
	}
	s := &svc{name: "dns", udp: true, vip: netip.MustParseAddr("40.0.0.1"), pods: c.servers[:1]}
	c.services = []*svc{s}
	must(t, c.put(0))
	must(t, c.start())
	must(t, c.settle())
	return c, z, s
}

// A flush that does not reach the switch, because the connection breaks or nkp dies between the change and it, is made up for:
// clients that keep sending from one port reach an endpoint that is there.
func TestInterruptedFlush(t *testing.T) {
	c, z, s := forgets(t)
	conn, err := c.clients[0].DialUDP(t.Context(), "40.0.0.1:80", testbed.DialOptions{LocalPort: 5353})
	must(t, err)
	defer conn.Close()
	awaitAnswer(t, conn, c.servers[0].Name)
	for i, tc := range []struct {
		name string
		kill bool
	}{{"the connection is cut", false}, {"nkp is killed", true}, {"the connection is cut once more", false}} {
		t.Run(tc.name, func(t *testing.T) {
			met := make(chan struct{})
			p, err := c.running()
			must(t, err)
			z.set(behaviour{cut: func() {
				if tc.kill {
					_ = p.Cmd.Process.Kill()
				}
				close(met)
			}})
			s.pods = c.servers[1+i : 2+i]
			must(t, c.put(0))
			wait.Closed(t, "a flush", met)
			if tc.kill {
				<-p.Done
				must(t, c.start())
			}
			must(t, c.settle())
			awaitAnswer(t, conn, c.servers[1+i].Name)
		})
	}
}

// awaitAnswer asks until it is answered by a server of this name.
func awaitAnswer(t *testing.T, conn net.Conn, name string) {
	t.Helper()
	buf := make([]byte, 256)
	wait.NoError(t, "an answer by "+name, func() error {
		conn.SetDeadline(time.Now().Add(time.Second)) // then it asks again
		conn.Write([]byte("?"))
		n, err := conn.Read(buf)
		if who, _, _ := strings.Cut(string(buf[:n]), " "); who != name {
			return fmt.Errorf("answered by %q, %v; want %s", who, err, name)
		}
		return nil
	})
}

// manyEndpoints is a UDP Service, or a TCP one that closes connections to removed endpoints, and another TCP one that keeps them, with
// their EndpointSlices: the first server, and as many addresses more where nobody is.
func (c *cluster) manyEndpoints(udp bool, more int) []any {
	closing := &svc{name: "dns", udp: udp, vip: netip.MustParseAddr("40.0.0.1"), pods: c.servers[:1]}
	if udp {
		return append(closing.manySlices(more), closing.service())
	}
	service := closing.service()
	service.Annotations = map[string]string{k8s.AnnotationRemovedEndpoints: "close"}
	kept := &svc{name: "kept", vip: keptVIP.Addr(), pods: c.servers[:1]}
	return slices.Concat(closing.manySlices(more), kept.manySlices(more), []any{service, kept.service()})
}

// keptVIP is the Service of manyEndpoints that keeps its connections.
var keptVIP = netip.MustParseAddrPort("40.0.0.2:80")

// manySlices are the Service's EndpointSlice, and those of more endpoints.
func (s *svc) manySlices(more int) []any {
	objects := []any{s.slice()}
	ready, node := true, harness.OtherNode
	for i := 0; i < more; i += 1000 {
		sl := s.slice()
		sl.Name = fmt.Sprint(s.name, "-more-", i)
		sl.Endpoints = nil
		for j := i; j < min(more, i+1000); j++ {
			sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.9.%d.%d", j/250, 1+j%250)}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		objects = append(objects, sl)
	}
	return objects
}

// clientPacket returns an IPv4 packet to an address, a datagram without checksum or a SYN, and what gives it a source.
func clientPacket(udp bool, to netip.AddrPort) (p []byte, from func(a [4]byte, port uint16)) {
	const header = 20
	size, proto := 9, byte(unix.IPPROTO_UDP)
	if !udp {
		size, proto = 20, unix.IPPROTO_TCP
	}
	p = make([]byte, header+size)
	p[0], p[8], p[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	dst := to.Addr().As4()
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint16(p[22:], to.Port())
	if udp {
		binary.BigEndian.PutUint16(p[24:], 9)
	} else {
		p[32], p[33] = 5<<4, 2 // SYN
		binary.BigEndian.PutUint16(p[34:], 64240)
	}
	return p, func(a [4]byte, port uint16) {
		copy(p[12:], a[:])
		binary.BigEndian.PutUint16(p[20:], port)
		if udp {
			return
		}
		p[36], p[37] = 0, 0
		sum := uint32(proto) + uint32(size) // and the pseudo header's addresses (RFC 9293 section 3.1)
		for i := 12; i < len(p); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(p[36:], ^uint16(sum))
	}
}

// keepConnections has the switch keep connections to Services for an hour.
func (c *cluster) keepConnections(t *testing.T) {
	t.Helper()
	_, err := c.Vsctl("--", "--id=@netdev", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@netdev")
	must(t, err)
	_, err = c.Vsctl("add-zone-tp", "netdev", "zone=1001", "udp_first=3600", "udp_single=3600", "udp_multiple=3600",
		"tcp_syn_sent=3600", "tcp_syn_recv=3600", "tcp_established=3600", "tcp_close=3600")
	must(t, err)
}

// connect has n clients, each with an address and port that no other Service's have, send a packet to a Service, and waits until the tracker has a connection
// more for each.
func (c *cluster) connect(t *testing.T, udp bool, to netip.AddrPort, n int) {
	t.Helper()
	want := c.connections(t) + n
	fd := -1
	must(t, c.clients[0].Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	defer unix.Close(fd)
	p, from := clientPacket(udp, to)
	dst := to.Addr().As4()
	for range 200 {
		for i := range n {
			from([4]byte{10, 0, 100 + dst[3], byte(i / 60_000)}, uint16(1024+i%60_000))
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
				t.Fatal(err)
			}
			if i%64 == 63 {
				time.Sleep(500 * time.Microsecond) // what the device's queue does not take is sent in the next round
			}
		}
		if c.connections(t) >= want {
			return
		}
	}
	t.Fatalf("the switch does not track %d connections", want)
}

// connections is how many the switch tracks, in all zones. It costs the switch nothing.
func (c *cluster) connections(t *testing.T) int {
	t.Helper()
	out, err := c.Appctl("dpctl/ct-get-nconns")
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	must(t, err)
	return n
}

// tracked counts the connections to the Service: those to its first endpoint, and others; and those to the Service that keeps all.
func (c *cluster) tracked(t *testing.T) (right, wrong, kept int) {
	t.Helper()
	tracker := dpctl.Find(c.DB(), testbed.UserDatapath)
	must(t, tracker.Each(t.Context(), 1001, func(e *dpctl.Connection) error {
		switch {
		case e.Frontend == keptVIP:
			kept++
		case e.Frontend.Addr() != netip.MustParseAddr("40.0.0.1"):
		case e.Endpoint.Addr() == c.servers[0].IP4:
			right++
		default:
			wrong++
		}
		return nil
	}))
	return right, wrong, kept
}

// listing finds how long a listing of the switch's connections took, in nkp's log.
var listing = regexp.MustCompile(`"scanned for stale UDP conntrack entries".* took=(\S+)`)

// listings is how often nkp has listed the switch's connections, and how often it had to do so again because one took too long.
func (c *cluster) listings() (n, failed int) {
	said := c.said(1 << 30)
	return len(listing.FindAllString(said, -1)), strings.Count(said, "cannot delete stale UDP conntrack entries")
}

// listsNoMore waits until nkp has made all listings and scans that it has reason for. Between two it waits for nine times as long as the first
// one took.
func (c *cluster) listsNoMore(t *testing.T) {
	t.Helper()
	for n := 0; ; {
		all := listing.FindAllStringSubmatch(c.said(1<<30), -1)
		if n == len(all) && n > 0 {
			return
		}
		pause := 5 * time.Second
		if n = len(all); n > 0 {
			took, err := time.ParseDuration(all[n-1][1])
			must(t, err)
			pause += 10 * took
		}
		time.Sleep(pause)
	}
}

// busy is the processor time of the switch's main thread, which answers OpenFlow.
func (c *cluster) busy(t *testing.T) time.Duration {
	t.Helper()
	pid := c.VswitchdPID()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, pid))
	must(t, err)
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	user, err1 := strconv.Atoi(string(f[11]))
	system, err2 := strconv.Atoi(string(f[12]))
	must(t, errors.Join(err1, err2))
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// A Service that loses nearly all of its endpoints keeps the connections to those that stay, loses all others in bounded time, and
// the switch is not silent so long that its connection is cut. What the switch is asked for is counted: for one endpoint it goes
// through its table twice, for thousands it lists it twice. In the long form there are as many connections as a busy DNS has.
func TestManyStaleConnections(t *testing.T) { testManyStale(t, true) }

// The same holds of TCP connections to removed endpoints. Those of a Service that keeps them stay, with the same endpoints.
func TestManyClosedConnections(t *testing.T) { testManyStale(t, false) }

func testManyStale(t *testing.T, udp bool) {
	many, connections := 1000, 25_000
	if formFromEnv(t).long {
		many, connections = 4000, 500_000
	}
	if least := chance.Trials(1 / float64(many+1)); connections < least { // so that some lead to the endpoint that stays
		t.Fatalf("%d connections to %d endpoints are too few, want %d", connections, many+1, least)
	}
	c := newCluster(t)
	c.flags = []string{"--log-level", "debug", "--audit-period", "1h"} // an audit would list, too
	z := c.intercept(t)
	must(t, harness.WriteManifests(c.manifest, c.manyEndpoints(udp, many)))
	must(t, c.start())
	must(t, c.settle())
	c.keepConnections(t)
	c.connect(t, udp, netip.MustParseAddrPort("40.0.0.1:80"), connections)
	if !udp {
		c.connect(t, udp, keptVIP, connections/10)
	}
	stay, go_, kept := c.tracked(t)
	if stay == 0 || go_ < connections*9/10 {
		t.Fatalf("%d connections to the endpoint that stays, %d to others", stay, go_)
	}
	c.listsNoMore(t)

	// shrink changes the Service, and waits until nothing is left that leads nowhere, and the switch was asked as often as it should be.
	shrink := func(endpoints, most, wantScans, wantListings int) {
		t.Helper()
		p, err := c.running()
		must(t, err)
		pid := p.Cmd.Process.Pid
		before, err := resident(pid, "VmRSS:")
		must(t, err)
		must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) // its peak starts over (proc(5))
		_, wrong, _ := c.tracked(t)
		want := c.connections(t) - wrong + most
		cpu, begun := c.busy(t), time.Now()
		scans, lookups := z.scans.Load(), z.lookups.Load()
		listings, failures := c.listings()
		must(t, harness.WriteManifests(c.manifest, c.manyEndpoints(udp, endpoints)))
		for left := c.connections(t); left > want; { // as long as there are fewer and fewer, it is at work
			was := left
			wait.NoError(t, "fewer connections", func() error {
				if left = c.connections(t); left >= was {
					return fmt.Errorf("%d connections after the endpoints went, want %d or fewer", left, want)
				}
				return nil
			})
		}
		took := time.Since(begun)
		c.listsNoMore(t) // the second look may be minutes later
		listed, failed := c.listings()
		listed -= listings + failed - failures // one that takes too long is repeated
		if n := int(z.scans.Load() - scans); n != wantScans || listed != wantListings {
			t.Errorf("the switch was asked for %d scans and %d listings, want %d and %d", n, listed, wantScans, wantListings)
		}

		peak, err := resident(pid, "VmHWM:")
		must(t, err)
		t.Logf("%d connections, then %d endpoints: as it should be within %v; the switch was asked for %d scans, %d listings and %d single "+
			"deletions: %v of its main thread; nkp %+d KiB at most", want-most+wrong, endpoints+1, took.Round(100*time.Millisecond),
			wantScans, wantListings, z.lookups.Load()-lookups, (c.busy(t) - cpu).Round(10*time.Millisecond), (peak-before)>>10)
		if more := peak - before; more > 20<<20 {
			t.Errorf("nkp takes %d MiB more", more>>20)
		}
		right, wrong, still := c.tracked(t)
		if right < stay || wrong > most || still != kept {
			t.Errorf("%d of %d connections to the endpoint that stays are left, %d to others, and %d of %d of the Service that keeps them",
				right, stay, wrong, still, kept)
		}
	}
	for _, question := range []string{"dpctl/dump-conntrack", "dpctl/ct-stats-show"} { // what Open vSwitch itself takes for them
		cpu := c.busy(t)
		_, err := c.Appctl(question, "zone=1001")
		must(t, err)
		t.Logf("%s: %v of the switch's main thread", question, c.busy(t)-cpu)
	}
	_, wrong, _ := c.tracked(t)
	shrink(many-1, wrong-1, 2, 0)
	shrink(0, 0, 0, 2)
	if said := c.said(1 << 30); strings.Contains(said, "connection to the switch lost") {
		t.Error("the connection to the switch was lost")
	}
}
