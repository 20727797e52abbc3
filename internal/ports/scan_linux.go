package ports

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// diagRequest is struct inet_diag_req_v2 (linux/inet_diag.h) without an identity: it asks for all sockets of
// a family and protocol in these states.
type diagRequest struct {
	family, protocol uint8
	states           uint32
}

const diagRequestLen = 56

// Len and Serialize are nl.NetlinkRequestData.
func (r diagRequest) Len() int { return diagRequestLen }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestLen)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], r.states)
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
