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
	"github.com/nkp-proxy/nkp/test/wait"
)

// silence is how long a client hears nothing until it asks a control. A lost SYN is repeated after 1, 3 and 7 s.
const silence = 8 * time.Second

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
	fd      int
	who     string
	control netip.AddrPort // is answered directly, without a Service; the zero AddrPort: nothing is
}

// dial connects and reads the server's line. The error is worded for a count.
func dial(to, control netip.AddrPort) (*connection, error) {
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
	c := &connection{fd: fd, control: control}
	c.limit(silence)
	if !control.IsValid() {
		c.limit(wait.Limit)
	}
	if err := c.controlled(func() error { return unix.Connect(fd, addr) }); err != nil {
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
		err := c.controlled(func() (err error) { k, err = unix.Read(c.fd, buf[n:]); return err })
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
	if err := c.controlled(func() error { _, err := unix.Write(c.fd, []byte(ping)); return err }); err != nil {
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

// limit bounds the system calls, connect among them.
func (c *connection) limit(d time.Duration) {
	tv := unix.NsecToTimeval(int64(d))
	unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// controlled makes a system call. If it hears nothing, a control is asked, and the call is looked at once more: what was sent before the
// control has been answered by then, however slow the machine is.
func (c *connection) controlled(f func() error) error {
	err := retry(f)
	if !silent(err) {
		return err
	}
	if !c.control.IsValid() { // this is a control
		return fmt.Errorf("no answer in %v", wait.Limit)
	}
	control, err := dial(c.control, netip.AddrPort{})
	if err != nil {
		return fmt.Errorf("no answer, and none from the endpoint itself: %w", err)
	}
	control.reset()
	c.limit(time.Millisecond)
	defer c.limit(silence)
	return retry(f)
}

// retry repeats a call that a signal interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// silent reports whether a blocking call has timed out.
func silent(err error) bool {
	return err == unix.EINPROGRESS || err == unix.EAGAIN || err == unix.EALREADY
}

// worded reports a timeout as such.
func worded(err error) error {
	if silent(err) {
		return fmt.Errorf("no answer in %v, while the endpoint itself answers", silence)
	}
	return err
}
