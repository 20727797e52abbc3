//go:build linux

package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/wait"
)

// The ways in which a server is not reached. Test with errors.Is.
var (
	// ErrRefused: the answer was a TCP reset or an ICMP port unreachable.
	ErrRefused = errors.New("refused")
	// ErrTimeout: no answer.
	ErrTimeout = errors.New("no answer")
	// ErrUnreachable: an ICMP error other than port unreachable, or no route.
	ErrUnreachable = errors.New("unreachable")
	// ErrBroken: the server was reached, but the connection failed thereafter.
	ErrBroken = errors.New("connection broke")
)

// DialOptions choose the client's own end. The zero value lets the kernel choose.
type DialOptions struct {
	LocalIP   netip.Addr
	LocalPort int
	// Timeout is how long to wait for the connection; 0: wait.Limit.
	Timeout time.Duration
	// Reset closes a TCP connection by a reset, so that its port is free at once.
	Reset bool

	sent func() // if not nil, is called when a socket has begun to connect
}

// DialTCP connects from the host. The caller closes the connection. The error
// wraps ErrRefused, ErrTimeout or ErrUnreachable where it is one of them.
func (h *Host) DialTCP(ctx context.Context, addr string, o DialOptions) (net.Conn, error) {
	c, err := h.dial(ctx, unix.SOCK_STREAM, addr, o)
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: tcp %s: %w", h.Name, addr, err)
	}
	if t, ok := c.(*net.TCPConn); ok && o.Reset {
		_ = t.SetLinger(0)
	}
	return c, nil
}

// DialContext is DialTCP as HTTP transports and clients of Kubernetes call it.
func (h *Host) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	return h.DialTCP(ctx, addr, DialOptions{})
}

// DialUDP makes a connected UDP socket in the host. The caller closes it.
func (h *Host) DialUDP(ctx context.Context, addr string, o DialOptions) (net.Conn, error) {
	c, err := h.dial(ctx, unix.SOCK_DGRAM, addr, o)
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: udp %s: %w", h.Name, addr, err)
	}
	return c, nil
}

// dial makes the socket and starts to connect on the namespace's thread and
// waits elsewhere, so that slow connections do not hold each other up.
func (h *Host) dial(ctx context.Context, kind int, addr string, o DialOptions) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, wait.Limit))
	defer cancel()
	fd := -1
	for {
		err = h.ns.do(func() (err error) {
			fd, err = h.socket(kind, to, o)
			return err
		})
		if err == nil {
			break
		}
		// A program that another test starts has copies of this process's sockets
		// until it has been executed, so a closed one may still hold its port.
		if !errors.Is(err, unix.EADDRNOTAVAIL) || o.LocalPort == 0 || ctx.Err() != nil {
			return nil, classify(err)
		}
		time.Sleep(time.Millisecond)
	}
	if o.sent != nil {
		o.sent()
	}
	f := os.NewFile(uintptr(fd), "testbed")
	defer f.Close() // net.FileConn has a copy
	if err := waitConnected(ctx, f); err != nil {
		return nil, classify(err)
	}
	return net.FileConn(f)
}

// socket returns a non-blocking socket that is connecting.
func (h *Host) socket(kind int, to netip.AddrPort, o DialOptions) (int, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if kind == unix.SOCK_DGRAM {
		// Without it a UDP socket hears of no ICMP error but port unreachable.
		if to.Addr().Is4() {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		} else {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	if o.LocalPort != 0 || o.LocalIP.IsValid() {
		local := o.LocalIP
		if !local.IsValid() {
			local = netip.IPv4Unspecified()
			if to.Addr().Is6() {
				local = netip.IPv6Unspecified()
			}
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, uint16(o.LocalPort)))); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// waitConnected waits until the socket is connected, has failed, or ctx ends.
func waitConnected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var result error
	err = raw.Write(func(fd uintptr) bool {
		v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			result = err
			return true
		}
		if v != 0 {
			result = unix.Errno(v)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		if errors.Is(err, unix.ENOTCONN) {
			return false
		}
		result = err
		return true
	})
	if err != nil {
		return err
	}
	return result
}

// classify adds one of the package's errors to an error of a socket.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EPROTO):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}
