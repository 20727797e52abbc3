//go:build linux

package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SCTP here is the first exchange of an association, INIT and INIT ACK (RFC 9260
// §3.3.2, §3.3.3), over raw sockets: enough to see where packets go, and it needs
// no SCTP in the kernel. The State Cookie carries the server's answer.

const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7 // parameter type

	sctpHeader = 12 // bytes of the common header
	sctpFixed  = 20 // bytes of an INIT's chunk before its parameters
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket is an INIT or INIT ACK.
type sctpPacket struct {
	from, to uint16 // ports
	chunk    byte   // type
	tag      uint32 // verification tag: 0 in an INIT, the peer's in an INIT ACK
	initTag  uint32
	cookie   []byte
}

func (p sctpPacket) encode() []byte {
	b := make([]byte, sctpHeader+sctpFixed, sctpHeader+sctpFixed+4+len(p.cookie)+3)
	binary.BigEndian.PutUint16(b[0:], p.from)
	binary.BigEndian.PutUint16(b[2:], p.to)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	c := b[sctpHeader:]
	c[0] = p.chunk
	binary.BigEndian.PutUint32(c[4:], p.initTag)
	binary.BigEndian.PutUint32(c[8:], 65536) // receiver window
	binary.BigEndian.PutUint16(c[12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(c[14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(c[16:], p.initTag)
	length := sctpFixed
	if p.cookie != nil {
		b = binary.BigEndian.AppendUint16(b, sctpCookie)
		b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.cookie)))
		b = append(b, p.cookie...)
		length += 4 + len(p.cookie)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	binary.BigEndian.PutUint16(b[sctpHeader+2:], uint16(length))
	// The checksum is the only little-endian field (RFC 9260 §6.8, appendix A).
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

var errSCTP = errors.New("not an SCTP INIT or INIT ACK with a right checksum")

func decodeSCTP(b []byte) (sctpPacket, error) {
	if len(b) < sctpHeader+sctpFixed {
		return sctpPacket{}, errSCTP
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	z := append([]byte(nil), b...)
	clear(z[8:12])
	if crc32.Checksum(z, castagnoli) != sum {
		return sctpPacket{}, errSCTP
	}
	p := sctpPacket{
		from:    binary.BigEndian.Uint16(b[0:]),
		to:      binary.BigEndian.Uint16(b[2:]),
		tag:     binary.BigEndian.Uint32(b[4:]),
		chunk:   b[sctpHeader],
		initTag: binary.BigEndian.Uint32(b[sctpHeader+4:]),
	}
	if p.chunk != sctpInit && p.chunk != sctpInitAck {
		return sctpPacket{}, errSCTP
	}
	for params := b[sctpHeader+sctpFixed:]; len(params) >= 4; {
		kind, n := binary.BigEndian.Uint16(params), int(binary.BigEndian.Uint16(params[2:]))
		if n < 4 || n > len(params) {
			break
		}
		if kind == sctpCookie {
			p.cookie = params[4:n]
		}
		params = params[min(len(params), (n+3)&^3):]
	}
	return p, nil
}

// rawRead reads one packet and returns its sender. An IPv4 raw socket hands over
// the IP header too, an IPv6 one does not.
func rawRead(f *os.File, buf []byte, v6 bool) ([]byte, netip.Addr, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, netip.Addr{}, err
	}
	var n int
	var from unix.Sockaddr
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		n, from, readErr = unix.Recvfrom(int(fd), buf, 0)
		return readErr != unix.EAGAIN
	})
	if err = errors.Join(err, readErr); err != nil {
		return nil, netip.Addr{}, err
	}
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		if n == 0 || v6 {
			return nil, netip.Addr{}, nil
		}
		head := int(buf[0]&15) * 4
		return buf[min(head, n):n], netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return buf[:n], netip.AddrFrom16(a.Addr), nil
	}
	return nil, netip.Addr{}, nil
}

func rawWrite(f *os.File, b []byte, to netip.Addr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var writeErr error
	err = raw.Write(func(fd uintptr) bool {
		writeErr = unix.Sendto(int(fd), b, 0, sockaddr(netip.AddrPortFrom(to, 0)))
		return writeErr != unix.EAGAIN
	})
	return errors.Join(err, writeErr)
}

// closers are closed together. Pointers to them can be compared.
type closers []io.Closer

func (list *closers) Close() error {
	var err error
	for _, c := range *list {
		err = errors.Join(err, c.Close())
	}
	return err
}

// ServeSCTP answers each INIT to a port with an INIT ACK that names the host and
// the client. Packets with a wrong checksum are not answered.
func (h *Host) ServeSCTP(port int) (*Server, error) {
	f4, err := h.rawFile(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.Addr{})
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: sctp: %w", h.Name, err)
	}
	f6, err := h.rawFile(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.Addr{})
	if err != nil {
		_ = f4.Close()
		return nil, fmt.Errorf("testbed: %s: sctp: %w", h.Name, err)
	}
	go h.answerSCTP(f4, port, false) // both ended by Close
	go h.answerSCTP(f6, port, true)
	return h.server(&closers{f4, f6})
}

func (h *Host) answerSCTP(f *os.File, port int, v6 bool) {
	buf := make([]byte, 65536)
	for {
		b, from, err := rawRead(f, buf, v6)
		if err != nil {
			if errno := unix.Errno(0); errors.As(err, &errno) && errno != unix.EBADF {
				continue // an ICMP error that came back
			}
			return // closed
		}
		p, err := decodeSCTP(b)
		if err != nil || p.chunk != sctpInit || int(p.to) != port {
			continue
		}
		ack := sctpPacket{
			from: p.to, to: p.from, chunk: sctpInitAck, tag: p.initTag, initTag: rand.Uint32() | 1,
			cookie: fmt.Appendf(nil, "%s %s\n", h.Name, netip.AddrPortFrom(from, p.from)),
		}
		_ = rawWrite(f, ack.encode(), from)
	}
}

func (h *Host) askSCTP(ctx context.Context, addr string, o AskOptions) (Answer, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return Answer{}, err
	}
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	f, err := h.rawFile(family, unix.SOCK_RAW, unix.IPPROTO_SCTP, to.Addr())
	if err != nil {
		return Answer{}, classify(err)
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	port := uint16(o.LocalPort)
	if port == 0 {
		port = uint16(32768 + rand.IntN(28000))
	}
	init := sctpPacket{from: port, to: to.Port(), chunk: sctpInit, initTag: rand.Uint32() | 1}
	if _, err := f.Write(init.encode()); err != nil {
		return Answer{}, classify(err)
	}
	o.sent()
	buf := make([]byte, 65536)
	for {
		b, _, err := rawRead(f, buf, to.Addr().Is6())
		if err != nil {
			return Answer{}, classify(err)
		}
		p, err := decodeSCTP(b)
		if err == nil && p.chunk == sctpInitAck && p.to == port && p.from == to.Port() && p.tag == init.initTag {
			return parseAnswer(string(p.cookie))
		}
	}
}
