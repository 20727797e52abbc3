//go:build linux

package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
)

// Host is a network namespace with a name: a node, the router, a pod, a client.
type Host struct {
	Name string
	// IP4 and IP6 are its main addresses; either may be the zero Addr.
	IP4, IP6 netip.Addr
	// MAC of the device that has them; "" if it was left to the kernel.
	MAC string

	bed *Bed
	ns  *namespace
}

func (b *Bed) newHost(name string, ip4, ip6 netip.Addr, mac string, forward bool) (*Host, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	ns.offload = b.opt.Plane == Linux || b.opt.Datapath == KernelDatapath
	h := &Host{Name: name, IP4: ip4, IP6: ip6, MAC: mac, bed: b, ns: ns}
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.hosts = append(b.hosts, h)
	}
	b.mu.Unlock()
	if closed {
		ns.close()
		return nil, errClosed
	}
	return h, ns.basics(forward)
}

// IP is the host's address of the family of like.
func (h *Host) IP(like netip.Addr) netip.Addr {
	if like.Is4() {
		return h.IP4
	}
	return h.IP6
}

// prefixes are its addresses with the lengths of their subnets.
func (h *Host) prefixes(bits4, bits6 int) []netip.Prefix {
	var list []netip.Prefix
	if h.IP4.IsValid() {
		list = append(list, netip.PrefixFrom(h.IP4, bits4))
	}
	if h.IP6.IsValid() {
		list = append(list, netip.PrefixFrom(h.IP6, bits6))
	}
	return list
}

// Netns is a path that leads into the namespace while this process lives:
// nsenter --net=PATH.
func (h *Host) Netns() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.ns.fd)) }

// Do runs f on a thread inside the namespace, where it may make sockets and start
// processes. There is one such thread, so f must not wait for long nor call
// other methods of this host.
func (h *Host) Do(f func() error) error { return h.ns.do(f) }

// Start starts a command in the namespace; the caller waits for it. The command
// dies with the bed or with this process. If cmd.Env is nil it gets the
// environment that leads the switch's tools to the private switch.
func (h *Host) Start(cmd *exec.Cmd) error {
	if cmd.Env == nil {
		cmd.Env = h.bed.env()
	}
	return h.ns.start(cmd)
}

// Exec is [Bed.Exec] with a context.
func (h *Host) Exec(ctx context.Context, argv ...string) (string, error) {
	out, _, err := h.ns.output(ctx, h.bed.command(argv[0], argv[1:]...))
	return out, err
}

// AddAddr adds an address to one of the host's devices, usable at once.
func (h *Host) AddAddr(dev string, p netip.Prefix) error {
	l, err := h.ns.nl.LinkByName(dev)
	if err == nil {
		err = h.ns.addAddr(l, p)
	}
	if err != nil {
		return fmt.Errorf("testbed: %s: address %s on %s: %w", h.Name, p, dev, err)
	}
	return nil
}

// AddRoute sets a route; via may be the zero Addr (on the link) or off-link.
func (h *Host) AddRoute(dst netip.Prefix, via netip.Addr, dev string) error {
	return h.ns.route(dst, via, dev)
}

// Sysctl sets a value below /proc/sys/net, for example "ipv4/ip_forward".
func (h *Host) Sysctl(name, value string) error { return h.ns.sysctl([2]string{name, value}) }
