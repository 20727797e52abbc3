package windows

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// notReady is the error when another component has to act first: the CNI plugin, kubelet, HNS itself.
type notReady struct{ what string }

func (e *notReady) Error() string { return "waiting: " + e.what }

// readNetwork reads the pods' network, which the CNI plugin may change any time.
func (p *Plane) readNetwork() error {
	var n *hns.Network
	err := error(&hns.Error{Code: hns.CodeElementNotFound})
	if p.network.ID != "" {
		n, err = p.host.Network(p.network.ID)
	}
	if hns.IsNotFound(err) {
		n, err = p.host.NetworkNamed(p.opts.NetworkName)
	}
	if hns.IsNotFound(err) {
		return &notReady{fmt.Sprintf("HNS has no network %q%s: the CNI plugin makes it, or set --network-name",
			p.opts.NetworkName, p.otherNetworks())}
	}
	if err != nil {
		return fmt.Errorf("cannot read network %q: %w", p.opts.NetworkName, err)
	}
	if n.ID != p.network.ID {
		clear(p.named)
	}
	p.network = *n
	return nil
}

// facts returns the facts about this host that a plan needs, with the network as it was read last.
func (p *Plane) facts() (*plan.Facts, error) {
	f := &plan.Facts{Network: p.network, Version: p.status.version(), NodeIP: k8s.IPv4.First(p.node.IPs),
		EnableDSR: p.opts.EnableDSR, HealthzPort: p.opts.HealthzPort, SourceVIP: p.opts.SourceVIP}
	if f.Network.Overlay() {
		if err := p.overlayFacts(f); err != nil {
			return nil, err
		}
	}
	return f, p.healthFacts(f)
}

// open opens HNS, the first time.
func (p *Plane) open() error {
	if p.host != nil {
		return nil
	}
	host, err := p.opts.Open()
	if err != nil {
		return err
	}
	p.host = counting{host, &p.calls}
	return nil
}

// otherNetworks returns which networks HNS has instead, for a message.
func (p *Plane) otherNetworks() string {
	names, err := p.host.NetworkNames()
	if err != nil || len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf(" (it has %s)", strings.Join(names, ", "))
}

// readVersion reads the version of HNS, once, because it does not change while the system runs.
func (p *Plane) readVersion() error {
	if p.status.version() != (hns.Version{}) {
		return nil
	}
	v, err := p.host.Version()
	if err != nil {
		return fmt.Errorf("cannot ask HNS for its version: %w", err)
	}
	if !hns.FeaturesOf(v).Api.V2 {
		return fmt.Errorf("this Windows is too old: %w", hns.Missing("HCN V2 API", "9.2", v))
	}
	p.status.update(func(b *statusRecord) {
		b.v, b.s.HNSVersion, b.s.Features = v, v.String(), hns.FeaturesOf(v)
	})
	for _, w := range p.warnings() {
		p.opts.Log.Warn(w)
	}
	return nil
}

// overlayFacts adds what only overlay networks need.
func (p *Plane) overlayFacts(f *plan.Facts) error {
	if !hns.FeaturesOf(f.Version).RemoteSubnet {
		return hns.Missing("RemoteSubnet", "9.2", f.Version)
	}
	if !f.NodeIP.IsValid() {
		return &notReady{"this node's IPv4 address is not known; the Node object has none yet (--node-ip)"}
	}
	if f.HostMAC = p.opts.HostMAC; f.HostMAC == "" {
		mac, err := hostMAC(f.NodeIP)
		if err != nil {
			return err
		}
		f.HostMAC = mac
	}
	if f.SourceVIP.IsValid() {
		return nil
	}
	var err error
	f.SourceVIP, err = p.sourceVIP(f)
	return err
}

// addressOf returns the IPv4 address of the endpoint with a name; the zero Addr: there is none. It is cached
// until the network changes or the next full read.
func (p *Plane) addressOf(name string) (a netip.Addr, err error) {
	if a, ok := p.named[name]; ok {
		return a, nil
	}
	e, err := p.host.EndpointNamed(name)
	if hns.IsNotFound(err) {
		return a, nil
	}
	if err != nil {
		return a, fmt.Errorf("cannot read endpoint %s: %w", name, err)
	}
	if a = k8s.IPv4.First(e.Addrs()); a.IsValid() {
		p.named[name] = a
	}
	return a, nil
}

// healthFacts finds the endpoint that health checks are forwarded to. Without it they are not forwarded, and
// status says so.
func (p *Plane) healthFacts(f *plan.Facts) error {
	why := ""
	defer func() { p.status.update(func(b *statusRecord) { b.root = why }) }()
	if !p.opts.ForwardHealthCheckVIP {
		return nil
	}
	a, err := p.addressOf(p.opts.RootEndpointName)
	if err == nil && !a.IsValid() {
		why = fmt.Sprintf("health checks are not forwarded: HNS has no endpoint named %s with an IPv4 "+
			"address (--root-hnsendpoint-name)", p.opts.RootEndpointName)
	}
	f.HealthEndpoint = a
	return err
}

// hostMAC returns the MAC address of the interface that has an address.
func hostMAC(ip netip.Addr) (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("cannot list the interfaces of this host: %w", err)
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if have, ok := netip.AddrFromSlice(n.IP); ok && have.Unmap() == ip && len(i.HardwareAddr) > 0 {
				return i.HardwareAddr.String(), nil
			}
		}
	}
	return "", &notReady{fmt.Sprintf("no interface of this host has the node's address %s", ip)}
}
