package fallback

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rawEndpoint is the endpoint of a family's canaries: a raw socket, which gets a copy of the datagrams that
// the kernel delivers to its address. It takes no UDP port, because a bound one would make another program
// fail that binds the same port at that moment. The kernel thus also answers a canary with an ICMP error. It
// needs CAP_NET_RAW.
type rawEndpoint struct {
	net.PacketConn
	port uint16
}

// openEndpoint opens the endpoint at an address of the node. The caller must close it.
func openEndpoint(at netip.AddrPort) (*rawEndpoint, error) {
	var listen net.ListenConfig
	network := "ip4:udp"
	if at.Addr().Is6() {
		network, listen.Control = "ip6:udp", func(_, _ string, raw syscall.RawConn) (err error) {
			failed := raw.Control(func(fd uintptr) { err = setUDP6(int(fd), at.Port()) })
			return cmp.Or(failed, err)
		}
	}
	conn, err := listen.ListenPacket(context.Background(), network, at.Addr().String())
	return &rawEndpoint{conn, at.Port()}, err
}

// setUDP6 has a raw socket of IPv6 leave out datagrams to other ports, because ::1 gets those of others, too.
// The kernel computes the checksum, which IPv6 demands and IPv4 does not (RFC 8200 section 8.1).
func setUDP6(fd int, port uint16) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: udpDestination},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, udpChecksum),
	)
}

// Offsets in the header of UDP, and its length (RFC 768).
const (
	udpDestination = 2
	udpChecksum    = 6
	udpHeader      = 8
)

// hear waits for a datagram with a word, at most canaryWait, and returns its sender.
func (e *rawEndpoint) hear(word string) (from netip.AddrPort, err error) {
	if err := e.SetReadDeadline(time.Now().Add(canaryWait)); err != nil {
		return from, err
	}
	b := make([]byte, 128)
	for {
		n, sender, err := e.ReadFrom(b)
		if err != nil {
			return from, err
		}
		if n > udpHeader && string(b[udpHeader:n]) == word {
			addr, _ := netip.AddrFromSlice(sender.(*net.IPAddr).IP)
			return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(b)), nil
		}
	}
}

// answer sends a datagram with a word from the endpoint.
func (e *rawEndpoint) answer(to netip.AddrPort, word string) error {
	b := binary.BigEndian.AppendUint16(nil, e.port)
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(word)))
	b = append(append(b, 0, 0), word...)
	_, err := e.WriteTo(b, &net.IPAddr{IP: to.Addr().AsSlice()})
	return err
}
