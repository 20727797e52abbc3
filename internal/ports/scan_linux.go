package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// States of a socket in struct inet_diag_msg (include/net/tcp_states.h). A UDP socket is closed until it is
// connected to a peer.
const (
	stateClosed = 7
	stateListen = 10
)

// Scan asks the kernel for all listeners of this network namespace (sock_diag(7), which filters by state
// itself, so that the number of connections does not matter). It skips sockets of this process, and protocols
// that the kernel does not support.
func Scan() ([]Listener, error) {
	own, err := ownSockets()
	if err != nil {
		return nil, err
	}

	var all []Listener
	for _, p := range []struct {
		name   k8s.Protocol
		number uint8
		state  uint8
	}{
		{v1.ProtocolTCP, unix.IPPROTO_TCP, stateListen},
		{v1.ProtocolUDP, unix.IPPROTO_UDP, stateClosed},
		{v1.ProtocolSCTP, unix.IPPROTO_SCTP, stateListen},
	} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			err := dump(diagRequest{
				family:   family,
				protocol: p.number,
				states:   1 << p.state,
			}, func(msg []byte) {
				if l, ok := parseDiag(msg); ok && !own[l.Inode] {
					l.Protocol = p.name
					all = append(all, l)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("list %s sockets: %w", p.name, err)
			}
		}
	}

	return all, nil
}

// ReceivesUDP reports whether the kernel would deliver a datagram to a UDP socket of this network namespace.
// Where the kernel has no sock_diag for UDP, it reports false.
func ReceivesUDP(from, to netip.AddrPort) (bool, error) {
	family := uint8(unix.AF_INET)
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	req.AddData(diagRequest{
		family: family, protocol: unix.IPPROTO_UDP, states: math.MaxUint32,
		from: from, to: to,
	})
	_, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// diagRequest is struct inet_diag_req_v2 (linux/inet_diag.h). A dump has no from and to: it asks for all
// sockets of a family and protocol in these states. Else it asks for the socket that takes a datagram: the
// kernel reads struct inet_diag_sockid the other way round for UDP (net/ipv4/udp_diag.c, udp_dump_one), so
// that its source is the datagram's.
type diagRequest struct {
	family, protocol uint8
	states           uint32
	from, to         netip.AddrPort
}

const diagRequestLen = 56

// Len and Serialize are nl.NetlinkRequestData.
func (r diagRequest) Len() int { return diagRequestLen }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestLen)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], r.states)
	binary.BigEndian.PutUint16(b[8:], r.from.Port())
	binary.BigEndian.PutUint16(b[10:], r.to.Port())
	copy(b[12:28], r.from.Addr().AsSlice())
	copy(b[28:44], r.to.Addr().AsSlice())
	copy(b[48:], "\xff\xff\xff\xff\xff\xff\xff\xff") // INET_DIAG_NOCOOKIE
	return b
}

// dump calls f for each answer. It retries if the kernel reports that the table changed during the dump.
func dump(r diagRequest, f func(msg []byte)) error {
	var err error
	for range 3 {
		var msgs [][]byte
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(r)
		msgs, err = req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if errors.Is(err, unix.ENOENT) {
			return nil // no such protocol, or no sock_diag for it
		}
		if err == nil {
			for _, m := range msgs {
				f(m)
			}
			return nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// Offsets in struct inet_diag_msg, and its length.
const (
	diagPort  = 4
	diagAddr  = 8
	diagInode = 68
	diagLen   = 72
)

// attrV6Only is INET_DIAG_SKV6ONLY: a byte, 1 if the socket takes no IPv4.
const attrV6Only = 11

// v6Only looks for that attribute. Attributes are length, type (16 bits each), value, and padding to 4 bytes,
// which may be missing at the end.
func v6Only(attrs []byte) bool {
	for len(attrs) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(attrs))
		if n < unix.SizeofNlAttr || n > len(attrs) {
			return false
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == attrV6Only && n > unix.SizeofNlAttr {
			return attrs[unix.SizeofNlAttr] != 0
		}
		attrs = attrs[min((n+3)&^3, len(attrs)):]
	}
	return false
}

// parseDiag reads a struct inet_diag_msg and its attributes.
func parseDiag(b []byte) (l Listener, ok bool) {
	if len(b) < diagLen {
		return l, false
	}
	var addr netip.Addr
	switch b[0] {
	case unix.AF_INET:
		addr = netip.AddrFrom4([4]byte(b[diagAddr:]))
	case unix.AF_INET6:
		addr = netip.AddrFrom16([16]byte(b[diagAddr:])).Unmap()
		l.Both = addr == netip.IPv6Unspecified() && !v6Only(b[diagLen:])
	default:
		return l, false
	}
	port := binary.BigEndian.Uint16(b[diagPort:])
	l.Addr = netip.AddrPortFrom(addr, port)
	l.Inode = binary.NativeEndian.Uint32(b[diagInode:])
	return l, port != 0
}
