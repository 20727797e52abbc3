//go:build linux

package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
)

// Bed is a running network, with its switch if the plane has one. Its methods may be called from any
// goroutine, except that those which start and stop the switch's daemons must
// not overlap with each other.
type Bed struct {
	// Node is the node whose switch is under test, Router what its uplink leads
	// to, Remote a second node, External a client outside the cluster.
	Node, Router, Remote, External *Host
	// Bridge is the name of the integration bridge; on the Linux plane of the
	// kernel's bridge, if pods hang on one.
	Bridge string
	// RunDir is the directory of the switch's sockets. It is there on every plane.
	RunDir string

	opt      Options
	ipv4     hostsIPv4
	dir      *tempDir
	ovs      string // prefix of the Open vSwitch; "": the system's
	ovsdb    *process
	vswitchd *process
	unhook   func() bool // forgets the context's end
	joins    []joined    // as Join's a, in this order

	// mu protects what tests add and Close takes away.
	mu      sync.Mutex
	closed  bool
	hosts   []*Host
	pods    map[string]*Pod
	numbers map[bool]map[int]bool // pod numbers in use; local: true
	closers map[io.Closer]*Host   // servers and connections, and where they are

	closeOnce sync.Once
	closeErr  error
}

// New builds a bed. It lives until Close or until ctx ends, whichever is first.
func New(ctx context.Context, o Options) (*Bed, error) {
	o.Bridge = cmp.Or(o.Bridge, "br-int")
	o.MTU = cmp.Or(o.MTU, 1500)
	o.Datapath = cmp.Or(o.Datapath, DefaultDatapath())
	if err := o.Plane.Available(); err != nil {
		return nil, err
	}
	if o.PodBridge && o.Plane != Linux {
		return nil, errors.New("testbed: the option PodBridge is for the Linux plane only")
	}
	dir, err := newTempDir(cmp.Or(o.Dir, os.TempDir()))
	if err != nil {
		return nil, err
	}
	b := &Bed{
		Bridge:  o.Bridge,
		RunDir:  dir.path,
		opt:     o,
		ipv4:    o.IPv4.hosts(),
		dir:     dir,
		ovs:     otherSwitch,
		pods:    map[string]*Pod{},
		numbers: map[bool]map[int]bool{true: {}, false: {}},
		closers: map[io.Closer]*Host{},
	}
	if err := b.build(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.unhook = context.AfterFunc(ctx, func() { _ = b.Close() })
	return b, nil
}

func (b *Bed) build(ctx context.Context) error {
	if n := len(b.Mgmt(b.Bridge)); n > 107 {
		return fmt.Errorf("testbed: %s: %d bytes are too many for a socket's path; use a shorter directory", b.Mgmt(b.Bridge), n)
	}
	for _, h := range []struct {
		to      **Host
		name    string
		ip4     netip.Addr
		ip6     netip.Addr
		mac     string
		forward bool
	}{
		{&b.Node, "node", b.ipv4.node, NodeIP6, NodeMAC, true},
		{&b.Router, "router", b.ipv4.router, RouterIP6, GatewayMAC, true},
		{&b.Remote, "remote", b.ipv4.remote, RemoteIP6, "", true},
		{&b.External, "external", ExternalIP4, ExternalIP6, "", false},
	} {
		host, err := b.newHost(h.name, h.ip4, h.ip6, h.mac, h.forward)
		if err != nil {
			return err
		}
		*h.to = host
	}
	if err := b.wire(); err != nil || b.opt.Plane == Linux {
		return err
	}
	return b.startSwitch(ctx)
}

// wire makes the links and routes between the four fixed hosts.
func (b *Bed) wire() error {
	router, remote, external := b.Router.ns, b.Remote.ns, b.External.ns
	nodeNet := []netip.Prefix{netip.PrefixFrom(b.ipv4.router, 24), netip.PrefixFrom(RouterIP6, 64)}
	remoteNet := []netip.Prefix{
		netip.PrefixFrom(b.ipv4.remoteGateway, b.ipv4.remoteBits), netip.MustParsePrefix("fd00:ac:1::1/64"),
	}
	if err := b.wireNode(nodeNet); err != nil {
		return err
	}
	if err := connect(
		end{ns: router, name: "remote", addr: remoteNet},
		end{ns: remote, name: "eth0", addr: b.Remote.prefixes(b.ipv4.remoteBits, 64)}, b.opt.MTU); err != nil {
		return err
	}
	if err := connect(
		end{ns: router, name: "external", addr: prefixes("192.168.0.1/24", "fd00:c0::1/64")},
		end{ns: external, name: "eth0", addr: b.External.prefixes(24, 64)}, b.opt.MTU); err != nil {
		return err
	}
	if b.ipv4.remoteBits == 32 { // the second node shares the node's subnet, on a link of its own
		if err := errors.Join(
			router.route(netip.PrefixFrom(b.ipv4.remote, 32), netip.Addr{}, "remote"),
			router.sysctl([2]string{"ipv4/conf/" + b.RouterDevice() + "/proxy_arp", "1"}),
		); err != nil {
			return err
		}
	}
	return errors.Join(
		defaultRoutes(remote, b.ipv4.remoteGateway, netip.MustParseAddr("fd00:ac:1::1"), "eth0"),
		defaultRoutes(external, netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:c0::1"), "eth0"),
		router.route(b.ipv4.remotePods, b.ipv4.remote, "remote"),
		router.route(RemotePodCIDR6, RemoteIP6, "remote"),
		b.serviceRoutes(),
	)
}

func (b *Bed) serviceRoutes() error {
	if b.opt.NoServiceRoutes {
		return nil
	}
	for _, p := range ServiceRanges {
		via := b.ipv4.node
		if p.Addr().Is6() {
			via = NodeIP6
		}
		if err := b.Router.ns.route(p, via, b.RouterDevice()); err != nil {
			return err
		}
	}
	return nil
}

func defaultRoutes(n *namespace, via4, via6 netip.Addr, dev string) error {
	return errors.Join(
		n.route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), via4, dev),
		n.route(netip.PrefixFrom(netip.IPv6Unspecified(), 0), via6, dev),
	)
}

func prefixes(s ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// own makes Close, and the removal of the pod h, close c; the result makes them
// forget c again.
func (h *Host) own(c io.Closer) (forget func(), err error) {
	b := h.bed
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.Join(errClosed, c.Close())
	}
	b.closers[c] = h
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.closers, c)
	}, nil
}

// closeAll closes what runs in h.
func (h *Host) closeAll() {
	b := h.bed
	b.mu.Lock()
	var list []io.Closer
	for c, at := range b.closers {
		if at == h {
			list = append(list, c)
			delete(b.closers, c)
		}
	}
	b.mu.Unlock()
	for _, c := range list {
		_ = c.Close() // may have been closed by the test
	}
}

// Close ends servers, the switch and every process started in the bed, lets the
// namespaces go and removes the directory. It may be called again and from any
// goroutine; every call waits for the end.
func (b *Bed) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

func (b *Bed) close() error {
	if b.unhook != nil {
		b.unhook()
	}
	b.mu.Lock()
	b.closed = true
	closers, hosts := b.closers, b.hosts
	b.closers, b.hosts = map[io.Closer]*Host{}, nil
	b.mu.Unlock()
	for c := range closers {
		_ = c.Close() // may have been closed by the test
	}
	b.stopSwitch()
	for _, h := range hosts {
		h.ns.close() // its processes die with the thread
	}
	return b.dir.remove()
}
