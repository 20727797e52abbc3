//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var errClosed = errors.New("testbed: closed")

// namespace is an anonymous network namespace and the one thread that lives in
// it. It goes when the thread, the handle, every process started in it and every
// socket made in it are gone: nothing is left to delete by name.
type namespace struct {
	fd netns.NsHandle
	nl *netlink.Handle // works from any thread
	// offload leaves checksums and segments to whoever takes a frame from a device, as the kernel does by
	// itself; the userspace datapath cannot.
	offload bool

	run chan func()   // work for the thread; unbuffered
	end chan struct{} // closed by close; ends the thread
	fin chan struct{} // closed by the thread as it ends

	once sync.Once
}

func newNamespace() (*namespace, error) {
	n := &namespace{run: make(chan func()), end: make(chan struct{}), fin: make(chan struct{})}
	ready := make(chan error, 1)
	go n.thread(ready) // ended by close
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("testbed: network namespace: %w", err)
	}
	return n, nil
}

// thread is the goroutine that never unlocks its thread: when it returns, the
// runtime ends the thread. The process's first thread cannot end, so it is not
// used.
func (n *namespace) thread(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		passed := make(chan error)
		go n.thread(passed) // cannot get this thread, which is locked
		err := <-passed
		runtime.UnlockOSThread()
		ready <- err
		return
	}
	defer close(n.fin)
	if err := n.enter(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for {
		select {
		case f := <-n.run:
			f()
		case <-n.end:
			return
		}
	}
}

func (n *namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	fd, err := netns.Get()
	if err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		fd.Close()
		return err
	}
	n.fd, n.nl = fd, h
	return nil
}

// do runs f on the namespace's thread. f must not wait for anything: everything
// else that wants a socket or a process in this namespace waits for it.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.run <- func() { done <- f() }:
		return <-done
	case <-n.fin:
		return errClosed
	}
}

// close ends the thread and lets go of the namespace. It may be called again.
func (n *namespace) close() {
	n.once.Do(func() {
		close(n.end)
		<-n.fin
		n.nl.Close()
		var s unix.Stat_t
		if unix.Fstat(int(n.fd), &s) == nil { // nkp's record of this namespace
			_ = os.Remove(fmt.Sprintf("/run/nkp/netns-%d.route_localnet", s.Ino))
		}
		n.fd.Close()
	})
}

// sysctl writes a file below /proc/sys/net as seen from the namespace.
func (n *namespace) sysctl(kv ...[2]string) error {
	return n.do(func() error {
		for _, e := range kv {
			if err := os.WriteFile("/proc/sys/net/"+e[0], []byte(e[1]), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// basics makes the namespace forward, answer at once and keep quiet: no reverse
// path filter, no redirects, no duplicate address detection, no router
// solicitation, ping sockets for everybody.
func (n *namespace) basics(forward bool) error {
	f := "0"
	if forward {
		f = "1"
	}
	err := n.sysctl(
		[2]string{"ipv4/ip_forward", f}, // first: it resets other settings
		[2]string{"ipv6/conf/all/forwarding", f},
		[2]string{"ipv4/conf/all/rp_filter", "0"},
		[2]string{"ipv4/conf/default/rp_filter", "0"},
		// The kernel sees what arrives on a device that the userspace datapath reads, and would answer ARP for
		// an address of any other device of the host.
		[2]string{"ipv4/conf/all/arp_ignore", "1"},
		[2]string{"ipv4/conf/all/send_redirects", "0"},
		[2]string{"ipv4/conf/default/send_redirects", "0"},
		[2]string{"ipv4/conf/all/accept_redirects", "0"},
		[2]string{"ipv4/conf/default/accept_redirects", "0"},
		[2]string{"ipv6/conf/all/accept_redirects", "0"},
		[2]string{"ipv6/conf/default/accept_redirects", "0"},
		[2]string{"ipv6/conf/all/accept_dad", "0"},
		[2]string{"ipv6/conf/default/accept_dad", "0"},
		[2]string{"ipv6/conf/default/accept_ra", "0"},
		[2]string{"ipv6/conf/default/router_solicitations", "0"},
		[2]string{"ipv6/conf/default/disable_ipv6", "0"},
		[2]string{"ipv4/ping_group_range", "0 2147483647"},
		[2]string{"ipv4/icmp_ratelimit", "0"},
		[2]string{"ipv4/icmp_msgs_per_sec", "1000000"},
		[2]string{"ipv4/icmp_msgs_burst", "1000000"},
		[2]string{"ipv6/icmp/ratelimit", "0"},
	)
	if err != nil {
		return fmt.Errorf("testbed: %w", err)
	}
	lo, err := n.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("testbed: lo: %w", err)
	}
	return n.nl.LinkSetUp(lo)
}
