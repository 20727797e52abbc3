package k8s

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A skipped Service (Options.SkipServices) belongs to another program of the node, for example NodeLocal
// DNSCache. None of its addresses is served, and its cluster IPs are no part of the Service ranges, so that
// no data plane refuses or drops what goes there. It keeps its cluster IPs: no other Service gets their ports
// as external IPs.

// whySkipped is why the addresses of a skipped Service are not served.
const whySkipped = "--skip-services leaves it to another program of the node"

// ParseServiceName parses NAMESPACE/NAME.
func ParseServiceName(text string) (ServiceName, error) {
	namespace, name, _ := strings.Cut(text, "/")
	if validation.IsDNS1123Label(namespace) != nil || validation.IsDNS1123Label(name) != nil {
		return ServiceName{}, fmt.Errorf("%q is not NAMESPACE/NAME of a Service, "+
			"such as kube-system/kube-dns", text)
	}
	return ServiceName{namespace, name}, nil
}

// skips reports whether SkipServices names a Service.
func (o *Options) skips(name ServiceName) bool { return slices.Contains(o.SkipServices, name) }

// skipped returns the skipped Services that there are, sorted.
func (t *Tracker) skipped() (list []ServiceName) {
	for _, name := range t.opts.SkipServices {
		if s := t.services[name]; s != nil && s.def != nil && s.def.skipped {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, ServiceName.Compare)
	return slices.Compact(list)
}

// SkippedPorts returns the ports of the skipped Services, in both families, sorted.
func (t *Tracker) SkippedPorts() (list []PortName) {
	for _, name := range t.skipped() {
		for i := range t.services[name].def.ports {
			list = append(list, t.services[name].def.ports[i].name)
		}
	}
	slices.SortFunc(list, PortName.Compare)
	return list
}

// SkippedAt returns the skipped Service that has a cluster IP; ok is false if none has it.
func (t *Tracker) SkippedAt(a netip.Addr) (name ServiceName, ok bool) {
	for _, name := range t.skipped() {
		isClusterIP := func(n notServedDef) bool { return n.typ == ClusterIP && n.addr == a }
		if slices.ContainsFunc(t.services[name].def.notServed, isClusterIP) {
			return name, true
		}
	}
	return ServiceName{}, false
}

// skippedAddresses returns the addresses of the skipped Services.
func (t *Tracker) skippedAddresses() (list []netip.Addr) {
	for _, name := range t.skipped() {
		for _, n := range t.services[name].def.notServed {
			if n.addr.IsValid() {
				list = append(list, n.addr)
			}
		}
	}
	return list
}

// without returns prefixes that hold the addresses of others but for some.
func without(prefixes []netip.Prefix, but []netip.Addr) []netip.Prefix {
	for _, a := range but {
		var rest []netip.Prefix
		for _, p := range prefixes {
			if !p.Contains(a) {
				rest = append(rest, p)
				continue
			}
			for i := p.Bits(); i < a.BitLen(); i++ { // the half without a of each half with it
				bytes := a.AsSlice()
				bytes[i/8] ^= 0x80 >> (i % 8)
				other, _ := netip.AddrFromSlice(bytes)
				rest = append(rest, netip.PrefixFrom(other, i+1).Masked())
			}
		}
		prefixes = rest
	}
	return prefixes
}
