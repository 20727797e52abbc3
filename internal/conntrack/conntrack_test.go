//go:build linux

package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// add makes conntrack entries by netlink.
func add(t *testing.T, n int, each func(i int) (c dpctl.Connection)) {
	t.Helper()
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	for i := range n {
		c := each(i)
		req := request(k8s.FamilyOf(c.Client.Addr()), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		req.Sockets = sockets
		seen := netip.AddrPortFrom(c.Seen, c.Client.Port())
		req.AddData(direction(nl.CTA_TUPLE_ORIG, c.IPProto(), c.Client, c.Frontend))
		req.AddData(direction(nl.CTA_TUPLE_REPLY, c.IPProto(), c.Endpoint, seen))
		req.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, nl.BEUint32Attr(3600)))
		req.AddData(nl.NewRtAttr(nl.CTA_MARK, nl.BEUint32Attr(c.Mark)))
		req.AddData(nl.NewRtAttr(nl.CTA_ZONE, nl.BEUint16Attr(c.Zone)))
		if c.Protocol == "TCP" {
			info := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nil)
			info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil).AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{nl.TCP_CONNTRACK_ESTABLISHED})
			req.AddData(info)
		}
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
			t.Fatalf("entry %d, %s: %v", i, &c, err)
		}
	}
}

// direction is a tuple of an entry.
func direction(kind int, proto uint8, src, dst netip.AddrPort) *nl.RtAttr {
	from, to := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if src.Addr().Is6() {
		from, to = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	a := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	ip := a.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(from, src.Addr().AsSlice())
	ip.AddRtAttr(to, dst.Addr().AsSlice())
	l4 := a.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	l4.AddRtAttr(nl.CTA_PROTO_NUM, []byte{proto})
	l4.AddRtAttr(nl.CTA_PROTO_SRC_PORT, nl.BEUint16Attr(src.Port()))
	l4.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(dst.Port()))
	return a
}

func connection(protocol k8s.Protocol, zone uint16, mark uint32, client, frontend, endpoint, seen string) dpctl.Connection {
	at := netip.MustParseAddrPort
	c := dpctl.Connection{
		Protocol: protocol, Client: at(client), Frontend: at(frontend), Endpoint: at(endpoint), Seen: netip.MustParseAddr(seen), Zone: zone, Mark: mark,
		Unanswered: true,
	}
	if protocol == "TCP" {
		c.State = "ESTABLISHED" // as add makes them
	}
	return c
}

func list(t *testing.T, f k8s.Family, zone uint16) (all []dpctl.Connection) {
	t.Helper()
	if err := Each(t.Context(), f, zone, func(c *dpctl.Connection) error {
		if c.Expires == 0 || c.Expires > 3600 { // as add sets it
			t.Errorf("%s expires in %d s", c, c.Expires)
		}
		all = append(all, *c)
		all[len(all)-1].Expires = 0
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b dpctl.Connection) int { return a.Client.Compare(b.Client) })
	return all
}

// What is listed is what is tracked, by family and zone, with addresses, ports and mark; what is stale is deleted, and nothing
// else.
func TestListAndForget(t *testing.T) {
	testbed.Isolate(t)
	v4 := []dpctl.Connection{
		connection("UDP", 1001, 7<<24|1, "10.0.0.1:1", "40.0.0.1:53", "10.0.1.1:5353", "10.0.0.1"),
		connection("TCP", 1001, 7, "10.0.0.2:2", "40.0.0.1:80", "10.0.1.2:8080", "10.0.0.2"),
		connection("SCTP", 1001, 7, "10.0.0.3:3", "40.0.0.1:80", "10.0.1.2:8080", "10.0.0.3"),
		connection("UDP", 1001, 0, "10.0.0.4:4", "10.0.1.1:53", "10.0.1.1:53", "192.0.2.1"),
	}
	v6 := []dpctl.Connection{connection("UDP", 1001, 7, "[fd00::1]:1", "[fd00:40::1]:53", "[fd00::2]:5353", "fd00::1")}
	others := []dpctl.Connection{
		connection("UDP", 0, 7, "10.0.0.1:1", "40.0.0.1:53", "10.0.1.1:5353", "10.0.0.1"),
		connection("UDP", 1002, 7, "10.0.0.1:1", "40.0.0.1:53", "10.0.1.1:5353", "10.0.0.1"),
	}
	all := slices.Concat(v4, v6, others)
	add(t, len(all), func(i int) dpctl.Connection { return all[i] })
	for _, tc := range []struct {
		f    k8s.Family
		zone uint16
		want []dpctl.Connection
	}{{k8s.IPv4, 1001, v4}, {k8s.IPv6, 1001, v6}, {k8s.IPv4, 0, others[:1]}, {k8s.IPv4, 1002, others[1:]}, {k8s.IPv6, 0, nil}, {k8s.IPv4, 7, nil}} {
		if got := list(t, tc.f, tc.zone); !slices.Equal(got, tc.want) {
			t.Errorf("%s, zone %d:\ngot  %+v\nwant %+v", tc.f, tc.zone, got, tc.want)
		}
	}
	udp := func(c *dpctl.Connection) bool { return c.Protocol == "UDP" }
	for i, want := range []int{2, 0} { // the second time they are gone
		if n, err := Forget(t.Context(), k8s.IPv4, 1001, udp); n != want || err != nil {
			t.Errorf("time %d: %d forgotten, %v; want %d", i, n, err, want)
		}
	}
	left := slices.Concat(list(t, k8s.IPv4, 1001), list(t, k8s.IPv6, 1001), list(t, k8s.IPv4, 0), list(t, k8s.IPv4, 1002))
	if want := slices.Concat(v4[1:3], v6, others); !slices.Equal(left, want) {
		t.Errorf("left:\n%+v\nwant:\n%+v", left, want)
	}
	if n, err := Forget(t.Context(), k8s.IPv4, 0, udp); n != 1 || err != nil || len(list(t, k8s.IPv4, 1002)) != 1 {
		t.Errorf("zone 0: %d forgotten, %v", n, err)
	}
}

// A list ends with its context, and with an error of the caller's.
func TestListEnds(t *testing.T) {
	testbed.Isolate(t)
	add(t, 2000, func(i int) dpctl.Connection { return many(i) })
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := Each(ctx, k8s.IPv4, 1001, func(*dpctl.Connection) error { n++; cancel(); return nil })
	if n != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d connections after the end, %v", n, err)
	}
	mine := errors.New("mine")
	if err := Each(t.Context(), k8s.IPv4, 1001, func(*dpctl.Connection) error { return mine }); err != mine {
		t.Error(err)
	}
}

// many are connections of one Service, each from a client of its own.
func many(i int) dpctl.Connection {
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 50_000), 1}), uint16(1024+i%50_000))
	return dpctl.Connection{
		Protocol: "UDP", Client: client, Frontend: netip.MustParseAddrPort("40.0.0.1:53"),
		Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 5353), Seen: client.Addr(), Zone: 1001, Mark: 1 << 31, Unanswered: true,
	}
}

// The memory that a list and the deletion of everything in it take does not grow with the table. There are
// 500,000 entries, or as many as the kernel allows.
func TestManyConnections(t *testing.T) {
	nightly.Only(t, "it takes half a minute to make the entries; the gate has TestListEnds")
	n := 500_000
	testbed.Isolate(t)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	most, _ := strconv.Atoi(string(bytes.TrimSpace(text)))
	n = min(n, most-most/20)
	add(t, n, many)
	before := testbed.Memory(t, os.Getpid(), "VmRSS")
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // VmHWM starts over (proc(5))
		t.Fatal(err)
	}
	got := 0
	if err := Each(t.Context(), k8s.IPv4, 1001, func(*dpctl.Connection) error { got++; return nil }); err != nil || got < n {
		t.Errorf("%d of %d connections, %v", got, n, err)
	}
	forgotten, err := Forget(t.Context(), k8s.IPv4, 1001, func(c *dpctl.Connection) bool { return true })
	if forgotten != n || err != nil {
		t.Errorf("%d of %d forgotten, %v", forgotten, n, err)
	}
	if more := testbed.Memory(t, os.Getpid(), "VmHWM") - before; more > 20<<10 {
		t.Errorf("%d connections take %d KiB more", n, more)
	}
}

// A list that the kernel interrupts has left entries out: it is repeated, a few times, and is an error if that does not help.
func TestInterruptedDump(t *testing.T) {
	for _, tc := range []struct {
		interrupted, calls int
		after, want        error
	}{
		{0, 1, nil, nil}, {1, 2, nil, nil}, {dumpTries - 1, dumpTries, nil, nil}, {dumpTries, dumpTries, nil, ErrInterrupted},
		{0, 1, unix.EPERM, unix.EPERM}, {1, 2, unix.EPERM, unix.EPERM},
	} {
		calls := 0
		_, err := forget(func(func(*dpctl.Connection, []byte) error) error {
			if calls++; calls <= tc.interrupted {
				return fmt.Errorf("list: %w", ErrInterrupted)
			}
			return tc.after
		}, k8s.IPv4, func(*dpctl.Connection) bool { return true })
		if calls != tc.calls || !errors.Is(err, tc.want) {
			t.Errorf("interrupted %d times, then %v: %d calls, %v", tc.interrupted, tc.after, calls, err)
		}
	}
}

// FuzzParse reads anything as a message of the kernel.
func FuzzParse(f *testing.F) {
	entry := direction(nl.CTA_TUPLE_ORIG, 17, netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("40.0.0.1:53")).Serialize()
	entry = append(entry, direction(nl.CTA_TUPLE_REPLY, 17, netip.MustParseAddrPort("10.0.1.1:53"), netip.MustParseAddrPort("10.0.0.1:1")).Serialize()...)
	f.Add(append(make([]byte, nl.SizeofNfgenmsg), entry...))
	f.Add([]byte{2, 0, 0, 0, 3, 0, 8, 0})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var c dpctl.Connection
		if parse(msg, &c) && (c.IPProto() == 0 || !c.Client.IsValid() || !c.Frontend.IsValid() || !c.Endpoint.IsValid() || !c.Seen.IsValid()) {
			t.Errorf("%+v", c)
		}
	})
}

// The kernel's numbers are those of the network namespace.
func TestUsage(t *testing.T) {
	testbed.Isolate(t)
	add(t, 3, many)
	if u, err := Usage(); err != nil || u.Entries != 3 || u.Limit <= 3 {
		t.Errorf("%+v, %v", u, err)
	}
	if f, err := Failures(); err != nil || !maps.Equal(f, map[string]uint64{"dropped": 0, "insert_failed": 0, "early_drop": 0}) {
		t.Errorf("%v, %v", f, err)
	}
}
