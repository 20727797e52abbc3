//go:build linux

package testbed

import (
	"bytes"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// ServeUDP answers each datagram to a port with one that names the host, the
// client and the number of bytes that came in, and that is at least as long. The answer comes from the address
// that was asked, whichever of the host's it is.
func (h *Host) ServeUDP(port int) (*Server, error) {
	p, err := h.ListenPacket(":" + strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	c := p.(*net.UDPConn) // of network udp
	if err := tellDestination(c); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("testbed: %s: %w", h.Name, err)
	}
	go h.answerUDP(c) // ended by Close
	return h.server(c)
}

func (h *Host) answerUDP(c *net.UDPConn) {
	buf, control := make([]byte, 65536), make([]byte, unix.CmsgSpace(unix.SizeofInet6Pktinfo))
	for {
		n, m, _, from, err := c.ReadMsgUDPAddrPort(buf, control)
		if err != nil {
			return
		}
		answer := fmt.Appendf(nil, "%s %s %d\n", h.Name, remote(net.UDPAddrFromAddrPort(from)), n)
		answer = append(answer, bytes.Repeat([]byte(" "), max(0, n-len(answer)))...)
		_, _, _ = c.WriteMsgUDPAddrPort(answer, sourceControl(control[:m]), from)
	}
}

// tellDestination makes the socket, which takes both families, say where each
// datagram was sent to; an IPv4 address comes mapped (RFC 3542 §6).
func tellDestination(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	if err := raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}); err != nil {
		return err
	}
	return opt
}

// sourceControl turns the control message of a datagram into that of its answer:
// from the same address, by any interface.
func sourceControl(control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo {
			return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		}
	}
	return nil
}
