package rules

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Type is the type of a part of a set's key or data.
type Type uint8

// The types. In netlink messages, each part is padded to a multiple of 4 bytes.
const (
	Addr   Type = iota // an address of the table's family
	Proto              // an IP protocol number
	Port               // a port, in network byte order
	Number             // a 32-bit number, in the machine's byte order: what numgen returns
)

// Size returns the number of bytes that the type takes in a key, without padding.
func (t Type) Size(f k8s.Family) int {
	switch {
	case t == Proto:
		return 1
	case t == Port:
		return 2
	case t == Addr && f == k8s.IPv6:
		return 16
	}
	return 4
}

// Set is a set, or a map if it has Data or Verdicts.
type Set struct {
	Name string
	Key  []Type
	Data []Type
	// Verdicts makes the set a verdict map.
	Verdicts bool
	// Counters counts the packets that matched each element.
	Counters bool
	// Interval allows an element to be a range in the last part of its key.
	Interval bool
	// Timeout, in seconds, makes elements expire; rules add them. 0: elements are nkp's own.
	Timeout int
	// Limit bounds the elements that rules add; 0: only nkp adds elements.
	Limit int
}

// SetID names one of the sets that every table has. Elements of other sets are added by rules only.
type SetID uint8

// The sets of a table. A frontend is an address, protocol and port; a NodePort is a protocol and port.
const (
	Services            SetID = iota // frontend -> chain for its kind of address; counts connections
	NodePorts                        // NodePort -> the same
	Spread                           // frontend -> chain that picks among the endpoints of policy Cluster
	SpreadLocal                      // the same for policy Local
	NodePortSpread                   // NodePort -> chain that picks among the endpoints of policy Cluster
	NodePortSpreadLocal              // the same for policy Local
	// frontend with session affinity -> chain that finds the client's endpoint
	Affinity
	AffinityLocal // the same for policy Local
	// NodePort with session affinity -> chain that finds the client's endpoint
	NodePortAffinity
	NodePortAffinityLocal // the same for policy Local
	// frontend with session affinity -> chain that records the client's endpoint
	Remember
	NodePortRemember  // the same for a NodePort
	Endpoints         // frontend, slot -> endpoint
	NodePortEndpoints // NodePort, slot -> endpoint
	Refused           // frontend that is not served -> chain that refuses; counts packets
	RefusedNodePorts  // the same for a NodePort
	// TCP frontend whose connections to removed endpoints end -> chain that resets; counts packets
	Reset
	ResetNodePorts     // the same for a NodePort
	TrafficIn          // frontend that is served; counts packets and bytes of its clients
	TrafficOut         // the same for answers
	NodePortTrafficIn  // NodePort that is served; counts packets and bytes of its clients
	NodePortTrafficOut // the same for answers
	NodeIPs            // the node's addresses
	ClusterIPs         // ClusterIPs, whose other ports are refused
	Hairpin            // endpoint's address, twice: it is its own client
	SourceRanges       // frontend, client range that is allowed
	// The sets from here on are there if pings are answered (Config.TableSets).
	Ping        // addresses that answer pings of some clients
	PingClients // client range as Client returns it, address that answers it
	PingHosts   // client's whole address, address that answers it
	setCount
)

var (
	frontendKey = []Type{Addr, Proto, Port}
	nodePortKey = []Type{Proto, Port}
)

// Sets are the sets that each table may have, indexed by SetID.
var Sets = [setCount]Set{
	Services:              {Name: "services", Key: frontendKey, Verdicts: true, Counters: true},
	NodePorts:             {Name: "nodeports", Key: nodePortKey, Verdicts: true, Counters: true},
	Spread:                {Name: "spread", Key: frontendKey, Verdicts: true},
	SpreadLocal:           {Name: "spread-local", Key: frontendKey, Verdicts: true},
	NodePortSpread:        {Name: "nodeport-spread", Key: nodePortKey, Verdicts: true},
	NodePortSpreadLocal:   {Name: "nodeport-spread-local", Key: nodePortKey, Verdicts: true},
	Affinity:              {Name: "affinity", Key: frontendKey, Verdicts: true},
	AffinityLocal:         {Name: "affinity-local", Key: frontendKey, Verdicts: true},
	NodePortAffinity:      {Name: "nodeport-affinity", Key: nodePortKey, Verdicts: true},
	NodePortAffinityLocal: {Name: "nodeport-affinity-local", Key: nodePortKey, Verdicts: true},
	Remember:              {Name: "remember", Key: frontendKey, Verdicts: true},
	NodePortRemember:      {Name: "nodeport-remember", Key: nodePortKey, Verdicts: true},
	Endpoints: {
		Name: "endpoints",
		Key:  append(slices.Clone(frontendKey), Number),
		Data: []Type{Addr, Port},
	},
	NodePortEndpoints: {
		Name: "nodeport-endpoints",
		Key:  append(slices.Clone(nodePortKey), Number),
		Data: []Type{Addr, Port},
	},
	Refused:            {Name: "refused", Key: frontendKey, Verdicts: true, Counters: true},
	RefusedNodePorts:   {Name: "refused-nodeports", Key: nodePortKey, Verdicts: true, Counters: true},
	Reset:              {Name: "closing", Key: frontendKey, Verdicts: true, Counters: true},
	ResetNodePorts:     {Name: "closing-nodeports", Key: nodePortKey, Verdicts: true, Counters: true},
	TrafficIn:          {Name: "traffic-in", Key: frontendKey, Counters: true},
	TrafficOut:         {Name: "traffic-out", Key: frontendKey, Counters: true},
	NodePortTrafficIn:  {Name: "nodeport-traffic-in", Key: nodePortKey, Counters: true},
	NodePortTrafficOut: {Name: "nodeport-traffic-out", Key: nodePortKey, Counters: true},
	NodeIPs:            {Name: "node-ips", Key: []Type{Addr}},
	ClusterIPs:         {Name: "cluster-ips", Key: []Type{Addr}},
	Hairpin:            {Name: "hairpin", Key: []Type{Addr, Addr}},
	SourceRanges: {
		Name:     "source-ranges",
		Key:      append(slices.Clone(frontendKey), Addr),
		Interval: true,
	},
	Ping:        {Name: "ping", Key: []Type{Addr}},
	PingClients: {Name: "ping-clients", Key: []Type{Addr, Addr}},
	PingHosts:   {Name: "ping-hosts", Key: []Type{Addr, Addr}},
}

// TableSets returns those of Sets that each table has; the index is a SetID.
func (c *Config) TableSets() []Set {
	if c.AnswerPing {
		return Sets[:]
	}
	return Sets[:Ping]
}

// Ref identifies an element: a set and a key.
type Ref struct {
	Set SetID
	// Key is as in netlink messages: parts padded to 4 bytes. With a range, the first key.
	Key string
}

// Frontend returns the frontend that an element of SourceRanges is of: its key without the client's address.
func (r Ref) Frontend(f k8s.Family) string { return r.Key[:max(0, len(r.Key)-Addr.Size(f))] }

// Value is what an element holds besides its key. It is comparable.
type Value struct {
	End  string // the last key of a range; "": no range
	Data string // a map's: as in netlink messages; a verdict map's: "goto CHAIN" or "jump CHAIN"
}

// Elements are elements of a table.
type Elements map[Ref]Value

// key builds a key or data.
type key []byte

func (k key) addr(a netip.Addr) key { return append(k, a.AsSlice()...) }
func (k key) proto(p uint8) key     { return append(k, p, 0, 0, 0) }
func (k key) port(p uint16) key     { return append(k, byte(p>>8), byte(p), 0, 0) }
func (k key) number(n uint32) key   { return binary.NativeEndian.AppendUint32(k, n) }

// The protocols of Services.
var (
	protocolNames   = map[uint8]string{6: "tcp", 17: "udp", 132: "sctp"}
	protocolNumbers = []uint8{6, 17, 132}
)

// Parts splits a key or data into its parts, as nft prints them.
func Parts(f k8s.Family, types []Type, b string) []string {
	parts := make([]string, 0, len(types))
	for _, t := range types {
		size := t.Size(f)
		padded := (size + 3) &^ 3
		if len(b) < padded {
			return append(parts, "?")
		}
		part := b[:size]
		b = b[padded:]
		switch t {
		case Addr:
			a, _ := netip.AddrFromSlice([]byte(part))
			parts = append(parts, a.String())
		case Proto:
			parts = append(parts, protoName(part[0]))
		case Port:
			parts = append(parts, strconv.Itoa(int(part[0])<<8|int(part[1])))
		case Number:
			parts = append(parts, strconv.FormatUint(uint64(binary.NativeEndian.Uint32([]byte(part))), 10))
		}
	}
	return parts
}

func protoName(n uint8) string {
	return cmp.Or(protocolNames[n], strconv.Itoa(int(n)))
}

// Text returns an element as nft prints it: "10.96.0.1 . tcp . 80 : goto cluster-ip".
func (r Ref) Text(f k8s.Family, v Value) string {
	s := &Sets[r.Set]
	parts := Parts(f, s.Key, r.Key)
	if last := len(parts) - 1; v.End != "" {
		if end := Parts(f, s.Key, v.End); len(end) == len(parts) && end[last] != parts[last] {
			parts[last] = rangeText(parts[last], end[last])
		}
	}
	text := strings.Join(parts, " . ")
	switch {
	case s.Verdicts:
		text += " : " + v.Data
	case len(s.Data) > 0:
		text += " : " + strings.Join(Parts(f, s.Data, v.Data), " . ")
	}
	return text
}

// rangeText returns a range of addresses as a prefix.
func rangeText(first, last string) string {
	a, errA := netip.ParseAddr(first)
	b, errB := netip.ParseAddr(last)
	if errA == nil && errB == nil {
		for bits := range a.BitLen() {
			if p := netip.PrefixFrom(a, bits); p.Masked().Addr() == a && p.Contains(b) && lastOf(p) == b {
				return p.String()
			}
		}
	}
	return first + "-" + last
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
