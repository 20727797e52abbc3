package rules

import (
	"encoding/binary"
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
)

// Adopt returns the slots that installed elements have for a Service port, so that its endpoints keep them.
func (c *Compiler) Adopt(installed Elements, p *k8s.ServicePort) (slots Ports) {
	b := &builder{Compiler: c, ServicePort: p, proto: k8s.ProtocolNumbers[p.Name.Protocol]}
	for i := range p.Frontends {
		if f := &p.Frontends[i]; c.Router.Serves(f) {
			a := b.at(f)
			for _, set := range k8s.Sets {
				if len(slots[set]) == 0 {
					slots[set] = c.adopt(installed, a, slotOffset(set))
				}
			}
		}
	}
	return slots
}

func (c *Compiler) adopt(installed Elements, a at, offset uint32) (slots Slots) {
	for i := range uint32(MaxSlots) {
		v, ok := installed[a.slot(offset+i)]
		if !ok {
			break
		}
		slots = append(slots, endpointOf(v.Data))
	}
	return slots
}

// endpointOf returns an endpoint from the data of a map; not a valid one if it is none.
func endpointOf(data string) netip.AddrPort {
	if len(data) < 4 {
		return netip.AddrPort{}
	}
	addr, ok := netip.AddrFromSlice([]byte(data[:len(data)-4]))
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(data[len(data)-4:])))
}

// Counting are the sets whose elements count packets.
var Counting = []SetID{
	Services, NodePorts, Refused, RefusedNodePorts, Reset, ResetNodePorts,
	TrafficIn, NodePortTrafficIn, TrafficOut, NodePortTrafficOut,
}

// Keys calls do with the keys of a Service port's frontends in the sets that count, the same in all of them.
func (c *Compiler) Keys(p *k8s.ServicePort, do func(key string)) {
	b := &builder{Compiler: c, ServicePort: p, proto: k8s.ProtocolNumbers[p.Name.Protocol]}
	for i := range p.Frontends {
		if f := &p.Frontends[i]; c.Router.Serves(f) {
			do(string(b.at(f).key))
		}
	}
}

// Reason returns why the element of a frontend refuses packets; ok is false if it does not.
func Reason(v Value) (why k8s.DropReason, ok bool) {
	why, ok = map[string]k8s.DropReason{
		"goto " + noEndpoint:      k8s.DropNoEndpoint,
		"goto " + noLocalEndpoint: k8s.DropNoLocalEndpoint,
		"goto " + sourceRange:     k8s.DropSourceRange,
		"goto " + reset:           k8s.DropRemovedEndpoint,
		"goto " + resetTranslated: k8s.DropRemovedEndpoint,
	}[v.Data]
	return why, ok
}

// StaleClients returns the keys among clients, each with its endpoint, whose endpoint is not among the slots
// any more.
func (s Slots) StaleClients(clients map[string]string) (keys []string) {
	valid := make(map[netip.AddrPort]bool, len(s))
	for _, e := range s {
		valid[e] = true
	}
	for k, data := range clients {
		if !valid[endpointOf(data)] {
			keys = append(keys, k)
		}
	}
	return keys
}
