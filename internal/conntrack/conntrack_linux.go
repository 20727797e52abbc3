package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// procDir has the size and the limit of the kernel's conntrack table (Linux:
// Documentation/networking/nf_conntrack-sysctl.rst).
const procDir = "/proc/sys/net/netfilter/"

// Usage returns how many entries of this network namespace the kernel tracks, and how many it tracks at most:
// math.MaxInt32 if there is no limit, for which the kernel has 0 (net/netfilter/nf_conntrack_core.c,
// __nf_conntrack_alloc).
func Usage() (f dpctl.Fill, err error) {
	for name, n := range map[string]*int{"nf_conntrack_count": &f.Entries, "nf_conntrack_max": &f.Limit} {
		text, err := os.ReadFile(procDir + name)
		if err != nil {
			return f, err
		}
		if *n, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return f, fmt.Errorf("%s%s: %w", procDir, name, err)
		}
	}
	if f.Limit == 0 {
		f.Limit = math.MaxInt32
	}
	return f, nil
}

// getStats is IPCTNL_MSG_CT_GET_STATS_CPU (enum cntl_msg_types); failures are attributes of its answers (enum
// ctattr_stats_cpu).
const getStats = 4

var failures = map[uint16]string{9: "insert_failed", 10: "dropped", 11: "early_drop"}

// Failures returns dpctl.Usage.Failures of this network namespace's kernel table, which
// /proc/net/stat/nf_conntrack shows too, where the kernel has it.
func Failures() (map[string]uint64, error) {
	sums := map[string]uint64{}
	err := request(k8s.IPv4, getStats, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, 0,
		func(msg []byte) bool { // for each CPU
			for kind, v := range attributes(msg[min(len(msg), nl.SizeofNfgenmsg):]) {
				if why := failures[kind]; why != "" {
					sums[why] += uint64(number(v))
				}
			}
			return true
		})
	return sums, err
}

// dumpTries bounds how often Forget lists a table because of ErrInterrupted.
const dumpTries = 5

// Each calls do for each TCP, UDP and SCTP connection of a family and zone. The Connection is valid during
// the call only. It is never Refused, because the kernel deletes the entry of a connection whose only answer
// is a reset. An error of do ends the listing. After ErrInterrupted, some connections were left out.
func Each(ctx context.Context, f k8s.Family, zone uint16, do func(*dpctl.Connection) error) error {
	return dump(ctx, f, zone, func(c *dpctl.Connection, _ []byte) error {
		if c.Protocol == Ping {
			return nil
		}
		return do(c)
	})
}

// Forget deletes the stale conntrack entries of a family and zone, those of protocol Ping among them. It
// returns how many it deleted, which is valid after an error, too. It continues after an entry that cannot be
// deleted. One that no longer exists is no error.
func Forget(
	ctx context.Context,
	f k8s.Family,
	zone uint16,
	stale func(*dpctl.Connection) bool,
) (forgotten int, err error) {
	return forget(func(do func(*dpctl.Connection, []byte) error) error {
		return dump(ctx, f, zone, do)
	}, f, stale)
}

// forget is Forget with what lists the connections.
func forget(
	list func(do func(*dpctl.Connection, []byte) error) error,
	f k8s.Family,
	stale func(*dpctl.Connection) bool,
) (forgotten int, err error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	socket.SetReceiveTimeout(&nl.SocketTimeoutTv)
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}

	var failed int
	var first error
	for range dumpTries {
		failed = 0
		err = list(func(c *dpctl.Connection, entry []byte) error {
			if !stale(c) {
				return nil
			}
			req := request(f, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
			req.Sockets = sockets
			req.AddRawData(entry) // with tuple, zone and id: a later connection of the same tuple stays
			switch _, err := req.Execute(unix.NETLINK_NETFILTER, 0); {
			case err == nil:
				forgotten++
			case !errors.Is(err, unix.ENOENT):
				if failed++; failed == 1 {
					first = fmt.Errorf("%s: %w", c, err)
				}
			}
			return nil
		})
		if !errors.Is(err, ErrInterrupted) {
			break
		}
	}

	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d connections cannot be deleted; the first: %w", failed, first))
	}
	return forgotten, err
}

// ForgetOne deletes the conntrack entry of a connection by its client, frontend and protocol, in zone 0, and
// reports whether there was one.
func ForgetOne(c *dpctl.Connection) (existed bool, err error) {
	ip := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	src, dst := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if c.Frontend.Addr().Is6() {
		src, dst = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	ip.AddRtAttr(src, c.Client.Addr().AsSlice())
	ip.AddRtAttr(dst, c.Frontend.Addr().AsSlice())

	proto := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{c.IPProto()})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, nl.BEUint16Attr(c.Client.Port()))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(c.Frontend.Port()))

	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	tuple.AddChild(ip)
	tuple.AddChild(proto)
	req := request(k8s.FamilyOf(c.Frontend.Addr()), nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddData(tuple)
	if _, err = req.Execute(unix.NETLINK_NETFILTER, 0); errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// dump calls do with each connection of a family and zone, and its netlink attributes.
func dump(ctx context.Context, f k8s.Family, zone uint16, do func(*dpctl.Connection, []byte) error) error {
	req := request(f, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	if zone != 0 {
		req.AddData(nl.NewRtAttr(nl.CTA_ZONE, nl.BEUint16Attr(zone))) // Linux before 6.8 sends all zones
	}
	var c dpctl.Connection
	var failed error
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if failed = ctx.Err(); failed == nil && parse(msg, &c) && c.Zone == zone {
			failed = do(&c, msg[nl.SizeofNfgenmsg:])
		}
		return failed == nil
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, nl.ErrDumpInterrupted):
		return ErrInterrupted
	}
	return err
}

func request(f k8s.Family, command, flags int) *nl.NetlinkRequest {
	family := uint8(unix.AF_INET)
	if f == k8s.IPv6 {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|command, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

var protocols = map[byte]k8s.Protocol{
	unix.IPPROTO_TCP:  "TCP",
	unix.IPPROTO_UDP:  "UDP",
	unix.IPPROTO_SCTP: "SCTP",
	unix.IPPROTO_ICMP: Ping, unix.IPPROTO_ICMPV6: Ping,
}

// parse reads a message of the kernel into c. It reports whether this is a TCP, UDP or SCTP connection with
// both its tuples.
func parse(msg []byte, c *dpctl.Connection) bool {
	*c = dpctl.Connection{}
	if len(msg) < nl.SizeofNfgenmsg {
		return false
	}
	entry := msg[nl.SizeofNfgenmsg:]
	orig, reply := attribute(entry, nl.CTA_TUPLE_ORIG), attribute(entry, nl.CTA_TUPLE_REPLY)
	var seen netip.AddrPort
	c.Protocol, c.Client, c.Frontend = tuple(orig)
	_, c.Endpoint, seen = tuple(reply)
	c.Seen = seen.Addr()
	c.Expires = number(attribute(entry, nl.CTA_TIMEOUT))
	c.Mark = number(attribute(entry, nl.CTA_MARK))
	c.Unanswered = number(attribute(entry, nl.CTA_STATUS))&seenReply == 0
	// A connection has a zone, or its directions have.
	c.Zone = short(attribute(entry, nl.CTA_ZONE)) | short(attribute(orig, ctaTupleZone))
	state := attribute(entry, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE)
	if len(state) > 0 {
		c.State = tcpStates[state[0]]
	}
	return c.Protocol != "" && c.Client.IsValid() && c.Frontend.IsValid() && c.Endpoint.IsValid() &&
		seen.IsValid()
}

// tcpStates maps the kernel's state numbers (enum tcp_conntrack) to Open vSwitch's names, which
// Connection.State uses.
var tcpStates = map[byte]string{
	nl.TCP_CONNTRACK_SYN_SENT:    "SYN_SENT",
	nl.TCP_CONNTRACK_SYN_RECV:    "SYN_RECV",
	nl.TCP_CONNTRACK_ESTABLISHED: "ESTABLISHED",
	nl.TCP_CONNTRACK_FIN_WAIT:    "FIN_WAIT_1",
	nl.TCP_CONNTRACK_CLOSE_WAIT:  "CLOSE_WAIT",
	nl.TCP_CONNTRACK_LAST_ACK:    "LAST_ACK",
	nl.TCP_CONNTRACK_TIME_WAIT:   "TIME_WAIT",
	nl.TCP_CONNTRACK_CLOSE:       "CLOSED",
}

// seenReply is IPS_SEEN_REPLY (enum ip_conntrack_status).
const seenReply = 1 << 1

// ctaTupleZone is the zone of one direction (enum ctattr_tuple).
const ctaTupleZone = 3

// tuple reads one direction of a connection.
func tuple(b []byte) (protocol k8s.Protocol, src, dst netip.AddrPort) {
	ip, proto := attribute(b, nl.CTA_TUPLE_IP), attribute(b, nl.CTA_TUPLE_PROTO)
	if number := attribute(proto, nl.CTA_PROTO_NUM); len(number) > 0 {
		protocol = protocols[number[0]]
	}
	from, ok := netip.AddrFromSlice(attribute(ip, nl.CTA_IP_V4_SRC))
	to, _ := netip.AddrFromSlice(attribute(ip, nl.CTA_IP_V4_DST))
	if !ok {
		from, _ = netip.AddrFromSlice(attribute(ip, nl.CTA_IP_V6_SRC))
		to, _ = netip.AddrFromSlice(attribute(ip, nl.CTA_IP_V6_DST))
	}
	return protocol, netip.AddrPortFrom(from, short(attribute(proto, nl.CTA_PROTO_SRC_PORT))),
		netip.AddrPortFrom(to, short(attribute(proto, nl.CTA_PROTO_DST_PORT)))
}

// attribute returns the value of the attribute at a path of nested ones; nil: there is none.
func attribute(b []byte, path ...uint16) []byte {
	for _, wanted := range path {
		var found []byte
		for kind, v := range attributes(b) {
			if kind == wanted {
				found = v
				break
			}
		}
		b = found
	}
	return b
}

// short returns a number of 16 bits in network byte order, and number one of 32; 0: there is none.
func short(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// attributes yields the type and value of each netlink attribute (struct nlattr). One that does not fit ends
// them.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= nl.SizeofNfattr {
			n := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
			if n < nl.SizeofNfattr || n > len(b) || !yield(kind, b[nl.SizeofNfattr:n]) {
				return
			}
			b = b[min(len(b), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}
