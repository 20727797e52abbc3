package fallback

import (
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// ownNamespace moves the test's thread, which ends with it, to a network namespace in which lo is up. Subtests run elsewhere.
func ownNamespace(t *testing.T) (lo netlink.Link) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lo
}

// While a canary is under way, another program can bind the endpoint's port, at all addresses. Once it has, it gets no canary, and nothing
// is claimed.
func TestCanaryTakesNoPort(t *testing.T) {
	ownNamespace(t)
	for _, f := range dataplane.Families {
		at := serving.CanaryOf(f)
		endpoint, err := openEndpoint(at.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		defer endpoint.Close()
		for _, addr := range []netip.Addr{at.Endpoint.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if f == k8s.IPv6 && addr.Is4() {
				continue
			}
			stranger, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, at.Endpoint.Port())))
			if err != nil {
				t.Errorf("the stranger cannot bind %v: %v", addr, err)
				continue
			}
			at := at
			at.Frontend = at.Endpoint // no rules translate here
			if r := tryCanary(at, endpoint); !strings.Contains(r.Unknown, "another program listens") {
				t.Errorf("beside a stranger at %v: %+v", addr, r)
			}
			stranger.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, err := stranger.Read(make([]byte, 99)); err == nil {
				t.Errorf("the stranger at %v got %d bytes", addr, n)
			}
			stranger.Close()
		}
	}
}

// The endpoint hears a datagram to its port, whatever else is sent to its address, and its answer arrives although the kernel refuses the
// datagram, too.
func TestCanaryEndpoint(t *testing.T) {
	ownNamespace(t)
	for _, f := range dataplane.Families {
		at := serving.CanaryOf(f)
		endpoint, err := openEndpoint(at.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		defer endpoint.Close()
		dial := func(to netip.AddrPort) *net.UDPConn {
			c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Client, 0)), net.UDPAddrFromAddrPort(to))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		flood := dial(netip.AddrPortFrom(at.Endpoint.Addr(), 9))
		if f == k8s.IPv6 { // more than the socket's buffer holds
			for range 5000 {
				flood.Write([]byte("something else of 27 bytes."))
			}
		}
		client := dial(at.Endpoint)
		if r := launch(client, "word"); r.Lost != "" || r.Unknown != "" {
			t.Fatalf("%+v", r)
		}
		from, err := endpoint.hear("word")
		if err != nil || from.String() != client.LocalAddr().String() {
			t.Fatalf("from %v: %v", from, err)
		}
		if err := endpoint.answer(from, "word"); err != nil {
			t.Fatal(err)
		}
		if err := hear(client, "word"); err != nil {
			t.Fatal(err)
		}
	}
}

// A datagram that the node cannot send shows nothing of the rules.
func TestCanaryThatCannotBeSent(t *testing.T) {
	lo := ownNamespace(t)
	at := serving.CanaryOf(k8s.IPv4)
	client, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Client, 0)), net.UDPAddrFromAddrPort(at.Frontend))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := netlink.AddrDel(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}); err != nil {
		t.Fatal(err)
	}
	if r := launch(client, "word"); !strings.Contains(r.Unknown, "cannot be sent") || r.Lost != "" {
		t.Errorf("%+v", r)
	}
}
