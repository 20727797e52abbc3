//go:build linux

package faults

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// patience is how long a client waits for a connection, and then for the server's line. A lost SYN is repeated after 1, 3
// and 7 s.
const patience = 8 * time.Second

// inside runs f on a thread of its own that lives in the host's network namespace, where f may wait as long as it likes in
// plain system calls: no poller and no copies of descriptors make connections cheap. The thread ends with f.
func inside(h *testbed.Host, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		done <- func() error {
			fd, err := unix.Open(h.Netns(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
			if err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

// connection is a blocking socket, and who answered.
type connection struct {
	fd  int
	who string
}

// dial connects and reads the server's line. The error is worded for a count.
func dial(to netip.AddrPort, limit time.Duration) (*connection, error) {
	family, addr := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		addr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &connection{fd: fd}
	tv := unix.NsecToTimeval(int64(limit))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv) // bounds connect too
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err := retry(func() error { return unix.Connect(fd, addr) }); err != nil {
		c.reset()
		return nil, fmt.Errorf("connect: %w", worded(err))
	}
	if c.who, err = c.line(); err != nil {
		c.reset()
		return nil, fmt.Errorf("read: %w", err)
	}
	return c, nil
}

// line reads what the server says at once.
func (c *connection) line() (string, error) {
	var buf [64]byte
	n := 0
	for {
		k := 0
		err := retry(func() (err error) { k, err = unix.Read(c.fd, buf[n:]); return err })
		if err != nil {
			return "", worded(err)
		}
		if k == 0 {
			return "", fmt.Errorf("closed by the server")
		}
		n += k
		if text, whole := strings.CutSuffix(string(buf[:n]), "\n"); whole {
			return text, nil
		}
		if n == len(buf) {
			return "", fmt.Errorf("odd answer %q", buf[:n])
		}
	}
}

// check makes a round trip.
func (c *connection) check() error {
	const ping = "are you there?\n"
	if err := retry(func() error { _, err := unix.Write(c.fd, []byte(ping)); return err }); err != nil {
		return worded(err)
	}
	got, err := c.line()
	if err == nil && got+"\n" != ping {
		err = fmt.Errorf("odd answer")
	}
	return err
}

// reset ends the connection at once, so that its port is free again.
func (c *connection) reset() {
	unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(c.fd)
}

// retry repeats a call that a signal interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// worded reports a timeout as such: blocking calls report one in two odd ways.
func worded(err error) error {
	if err == unix.EINPROGRESS || err == unix.EAGAIN {
		return fmt.Errorf("no answer in %v", patience)
	}
	return err
}
