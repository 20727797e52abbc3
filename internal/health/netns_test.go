//go:build linux

package health

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// namespace is a network namespace with loopback alone; it ends with the test.
type namespace struct{ run chan func() }

// newNamespace makes one in which loopback is up and has these addresses too.
func newNamespace(t *testing.T, addrs ...string) *namespace {
	t.Helper()
	testbed.NeedRoot(t) // for network namespaces
	return startThread(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return upLoopback(addrs)
	})
}

// fork returns a second thread in the namespace, for what takes long.
func (n *namespace) fork(t *testing.T) *namespace {
	t.Helper()
	var ns netns.NsHandle
	var err error
	n.do(func() { ns, err = netns.Get() })
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	return startThread(t, func() error { return netns.Set(ns) })
}

// startThread starts a thread that enters a namespace and then works there until the test ends. It is never unlocked:
// it ends with its goroutine, and the namespace with its last thread and socket.
func startThread(t *testing.T, enter func() error) *namespace {
	t.Helper()
	n := &namespace{run: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := enter()
		ready <- err
		for f := range n.run {
			f()
		}
	}()
	t.Cleanup(func() { close(n.run) })
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	return n
}

func upLoopback(addrs []string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, a); err != nil {
			return err
		}
	}
	return nil
}

// do runs f on the namespace's thread: the sockets that it makes are there.
func (n *namespace) do(f func()) {
	done := make(chan struct{})
	n.run <- func() { defer close(done); f() }
	<-done
}

// dial is a DialContext.
func (n *namespace) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	n.do(func() { c, err = (&net.Dialer{Timeout: wait.Limit}).DialContext(ctx, network, addr) })
	return c, err
}

// client opens a connection for each request.
func (n *namespace) client() *http.Client {
	return &http.Client{Timeout: wait.Limit, Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
}

// refuses reports whether nothing listens at an address.
func (n *namespace) refuses(addr string) bool {
	c, err := n.dial(context.Background(), "tcp", addr)
	if err == nil {
		c.Close()
	}
	return err != nil
}

// occupy listens at an address until the returned function is called.
func (n *namespace) occupy(t *testing.T, network, addr string) (free func()) {
	t.Helper()
	var l net.Listener
	var err error
	n.do(func() { l, err = net.Listen(network, addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func() { l.Close() }
}
