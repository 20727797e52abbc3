//go:build linux

package testbed

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// PodSpec describes a pod to add. The zero value is a dual-stack pod with the
// next free number.
type PodSpec struct {
	// Name; "" means pod-N, for a remote pod remote-N.
	Name string
	// Number determines the addresses, the MAC and the OpenFlow port; 0 means the next
	// free one from FirstPod on. At most 254.
	Number int
	// NoIPv4 and NoIPv6 leave a family out.
	NoIPv4, NoIPv6 bool
	// PointToPoint assigns the pod /32 and /128 addresses: even pods of its own
	// subnet are reached through the gateway.
	PointToPoint bool
	// Tag is an access VLAN; 0 means none. Local pods on the switch only.
	Tag int
	// Bridge is another bridge than the bed's. Local pods on the switch only.
	Bridge string
	// NoIDs leaves out the external_ids by which a pod's Interface is known. Local
	// pods on the switch only.
	NoIDs bool
	// Plug replaces the bed's own wiring, as a CNI plugin does: it makes eth0 in the pod's namespace, with the pod's addresses and routes,
	// and sets the pod's Interface, MAC and OFPort. Local pods on the switch only.
	Plug func(*Pod) error
}

// Pod is a host with one device, eth0. Local pods hang on the switch, or on the
// Linux plane on the node itself.
type Pod struct {
	*Host
	// Number is what it was given, OFPort its OpenFlow port (local pods on the
	// switch: the same), Interface its row in the switch's database and the name of
	// the node's end of its link.
	Number    int
	OFPort    int
	Interface string
	// IfaceID is the external_ids:iface-id of the Interface.
	IfaceID string
	// Local is set for pods of the node, not for those of the second node.
	Local bool

	bridge string
}

// AddPod adds one local pod.
func (b *Bed) AddPod(spec PodSpec) (*Pod, error) {
	pods, err := b.AddPods(spec)
	if err != nil {
		return nil, err
	}
	return pods[0], nil
}

// AddPods adds local pods with one change of the switch's database. They can be
// reached as soon as it returns, flows permitting.
func (b *Bed) AddPods(specs ...PodSpec) ([]*Pod, error) {
	var pods []*Pod
	var args []string
	for _, spec := range specs {
		p, err := b.newPod(spec, true)
		if p != nil {
			pods = append(pods, p)
		}
		if err != nil {
			return nil, errors.Join(err, b.RemovePods(pods...))
		}
		if spec.Plug != nil {
			if err := spec.Plug(p); err != nil {
				return nil, errors.Join(err, b.RemovePods(pods...))
			}
			continue
		}
		args = append(args, "--", "add-port", p.bridge, p.Interface)
		if spec.Tag != 0 {
			args = append(args, fmt.Sprint("tag=", spec.Tag))
		}
		args = append(args, "--", "set", "Interface", p.Interface, fmt.Sprint("ofport_request=", p.OFPort))
		if !spec.NoIDs {
			args = append(args, p.externalIDs()...)
		}
	}
	if len(args) == 0 || b.opt.Plane == Linux {
		return pods, nil
	}
	if _, err := b.Vsctl(args[1:]...); err != nil {
		return nil, errors.Join(err, b.RemovePods(pods...))
	}
	return pods, nil
}

func (p *Pod) externalIDs() []string {
	var ips []string
	for _, a := range []netip.Addr{p.IP4, p.IP6} {
		if a.IsValid() {
			ips = append(ips, a.String())
		}
	}
	return []string{
		"external_ids:iface-id=" + p.IfaceID,
		`external_ids:attached-mac="` + p.MAC + `"`,
		`external_ids:ip_addresses="` + strings.Join(ips, ",") + `"`,
	}
}

// AddRemotePods adds pods of the second node.
func (b *Bed) AddRemotePods(specs ...PodSpec) ([]*Pod, error) {
	var pods []*Pod
	for _, spec := range specs {
		p, err := b.newPod(spec, false)
		if p != nil {
			pods = append(pods, p)
		}
		if err != nil {
			return nil, errors.Join(err, b.RemovePods(pods...))
		}
	}
	return pods, nil
}

// newPod makes the pod's namespace, its link to the node (local) or to the second
// node, addresses and routes. What it returns beside an error must be removed.
func (b *Bed) newPod(spec PodSpec, local bool) (*Pod, error) {
	p, err := b.reserve(spec, local)
	if err != nil {
		return nil, err
	}
	var ip4, ip6 netip.Addr
	subnet4, subnet6, gw4, gw6 := b.ipv4.pods, "fd00:a::", b.ipv4.gateway, GatewayIP6
	node := b.Node.ns
	if !local {
		subnet4, subnet6 = b.ipv4.remotePods, "fd00:b::"
		gw4, gw6 = b.ipv4.remotePodGateway, netip.MustParseAddr("fd00:b::1")
		node = b.Remote.ns
	}
	if !spec.NoIPv4 {
		ip4 = nth(subnet4, p.Number)
	}
	if !spec.NoIPv6 {
		ip6 = netip.MustParseAddr(fmt.Sprint(subnet6, p.Number))
	}
	mac := fmt.Sprintf("02:00:00:00:%02d:%02d", p.Number/100, p.Number%100)
	if !local {
		mac = fmt.Sprintf("02:00:00:01:%02d:%02d", p.Number/100, p.Number%100)
	}
	name := p.Host.Name
	host, err := b.newHost(name, ip4, ip6, mac, false)
	if err != nil {
		b.release(p)
		return nil, err
	}
	p.Host = host
	if spec.Plug != nil {
		return p, nil
	}
	routed := b.opt.Plane == Linux
	bits4, bits6 := 24, 64
	if !local || spec.PointToPoint || routed {
		bits4, bits6 = 32, 128
	}
	outer := end{ns: node, name: p.Interface, bare: local}
	switch {
	case !local:
		outer.addr = []netip.Prefix{netip.PrefixFrom(gw4, 32), netip.PrefixFrom(gw6, 128)}
	case routed && !b.opt.PodBridge:
		outer.mac, outer.bare = GatewayMAC, false
	}
	if err := connect(outer, end{ns: host.ns, name: "eth0", mac: mac, addr: host.prefixes(bits4, bits6)}, b.opt.MTU); err != nil {
		return p, err
	}
	for _, a := range host.prefixes(32, 128) {
		gw, all := gw4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if a.Addr().Is6() {
			gw, all = gw6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := host.ns.route(all, gw, "eth0"); err != nil {
			return p, err
		}
		if local {
			continue
		}
		if err := node.route(a, netip.Addr{}, p.Interface); err != nil {
			return p, err
		}
	}
	if local && routed {
		return p, b.routePod(p)
	}
	return p, nil
}

// reserve takes a number and a name.
func (b *Bed) reserve(spec PodSpec, local bool) (*Pod, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	used, n := b.numbers[local], spec.Number
	if n == 0 {
		for n = FirstPod; used[n]; n++ {
		}
	}
	if b.opt.Plane == Linux && (spec.Tag != 0 || spec.Bridge != "" || spec.Plug != nil) {
		return nil, errNoSwitch
	}
	if n <= UplinkPort || n > 254 || used[n] {
		return nil, fmt.Errorf("testbed: pod number %d is taken or out of range", n)
	}
	prefix := "pod-"
	if !local {
		prefix = "remote-"
	}
	name := cmp.Or(spec.Name, fmt.Sprint(prefix, n))
	if b.pods[name] != nil {
		return nil, fmt.Errorf("testbed: there is a pod %s already", name)
	}
	dev := name
	if len(dev) > 15 || dev == b.Bridge || dev == UplinkName || dev == "eth0" || dev == "lo" {
		dev = fmt.Sprint("veth-", n)
	}
	used[n] = true
	p := &Pod{
		Host: &Host{Name: name}, Number: n, OFPort: n, Interface: dev, IfaceID: name, Local: local,
		bridge: cmp.Or(spec.Bridge, b.Bridge),
	}
	if !local || b.opt.Plane == Linux {
		p.OFPort = 0
	}
	b.pods[name] = p
	return p, nil
}

func (b *Bed) release(p *Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, p.Name)
	delete(b.numbers[p.Local], p.Number)
	for i, h := range b.hosts {
		if h == p.Host {
			b.hosts = append(b.hosts[:i:i], b.hosts[i+1:]...)
			break
		}
	}
}

// RemovePods takes pods away: their ports, links and namespaces. Their numbers
// and names are free again. Servers in them and connections held by them are
// closed.
func (b *Bed) RemovePods(pods ...*Pod) error {
	var args []string
	for _, p := range pods {
		if p.Local && b.opt.Plane == OVS {
			args = append(args, "--", "--if-exists", "del-port", p.bridge, p.Interface)
		}
	}
	var err error
	if len(args) > 0 {
		_, err = b.Vsctl(args[1:]...)
	}
	for _, p := range pods {
		node := b.Node.ns
		if !p.Local {
			node = b.Remote.ns
		}
		if l, e := node.nl.LinkByName(p.Interface); e == nil {
			err = errors.Join(err, node.nl.LinkDel(l))
		}
		p.closeAll()
		p.ns.close()
		b.release(p)
	}
	return err
}

// RemovePod takes one pod away.
func (b *Bed) RemovePod(p *Pod) error { return b.RemovePods(p) }
