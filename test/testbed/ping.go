//go:build linux

package testbed

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/wait"
)

// Ping sends one ICMP or ICMPv6 echo request and waits for its answer; it returns
// the round trip's time. The error wraps ErrTimeout or ErrUnreachable where it is
// one of them. It waits for wait.Limit at most.
func (h *Host) Ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	d, err := h.ping(ctx, to)
	if err != nil {
		return 0, fmt.Errorf("testbed: %s: ping %s: %w", h.Name, to, classify(err))
	}
	return d, nil
}

func (h *Host) ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	// An ICMP datagram socket: the kernel sets identifier and checksum and hands
	// back only replies to this socket.
	family, proto, request, reply := unix.AF_INET, unix.IPPROTO_ICMP, byte(8), byte(0)
	if to.Is6() {
		family, proto, request, reply = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, 129
	}
	f, err := h.rawFile(family, unix.SOCK_DGRAM, proto, to)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	msg := []byte{request, 0, 0, 0, 0, 0, 0, 1, 'n', 'k', 'p', 0, 0, 0, 0, 0}
	start := time.Now()
	binary.BigEndian.PutUint32(msg[12:], uint32(start.UnixNano()))
	if _, err := f.Write(msg); err != nil {
		return 0, err
	}
	buf := make([]byte, 1500)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return 0, err
		}
		if n >= 8 && buf[0] == reply {
			return time.Since(start), nil
		}
	}
}

// rawFile makes a connected socket without ports in the host's namespace.
func (h *Host) rawFile(family, kind, proto int, to netip.Addr) (*os.File, error) {
	fd := -1
	err := h.ns.do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err != nil || !to.IsValid() {
			return err
		}
		if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			_ = unix.Close(fd)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "testbed"), nil
}
