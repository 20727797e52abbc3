package hns

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// SchemaVersion is the version of an object's schema; nkp writes 2.0 only.
type SchemaVersion struct {
	Major, Minor int
}

// Schema2 is the schema of HCN's V2 API.
var Schema2 = SchemaVersion{Major: 2, Minor: 0}

// Policy is a typed setting of a network or an endpoint.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// The policies that nkp reads or writes, and the names of the two kinds of network it serves.
const (
	PolicyRemoteSubnetRoute = "RemoteSubnetRoute" // of an overlay network: which node holds which pod addresses
	PolicyProviderAddress   = "ProviderAddress"   // of a remote endpoint: the node that packets are tunnelled to

	NetworkOverlay  = "Overlay"
	NetworkL2Bridge = "L2Bridge"
)

// Network is a virtual network, made by the CNI plugin.
type Network struct {
	ID            string `json:"ID,omitempty"`
	Name          string `json:",omitempty"`
	Type          string `json:",omitempty"`
	RemoteSubnets []RemoteSubnet
}

// RemoteSubnet says that the addresses of Prefix are reached through the node Provider.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr
}

// Overlay reports whether the network tunnels to other nodes (VXLAN).
func (n *Network) Overlay() bool { return strings.EqualFold(n.Type, NetworkOverlay) }

// Provider returns the node that holds an address: the one of the longest matching prefix, or the address
// itself if it is a node's. The zero Addr: the network has no node for it.
func (n *Network) Provider(a netip.Addr) (node netip.Addr) {
	bits := -1
	for _, s := range n.RemoteSubnets {
		if s.Provider == a {
			return a
		}
		if s.Prefix.Contains(a) && s.Prefix.Bits() > bits {
			node, bits = s.Provider, s.Prefix.Bits()
		}
	}
	return node
}

// ParseNetwork reads a network as HNS returns it.
func ParseNetwork(text []byte) (*Network, error) {
	var n struct {
		ID, Name, Type string
		Policies       []Policy
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("a network of HNS does not parse: %w", err)
	}
	return &Network{CanonicalID(n.ID), n.Name, n.Type, ParseRemoteSubnets(n.Policies)}, nil
}

// ParseRemoteSubnets reads the policies of a network; what does not parse is left out.
func ParseRemoteSubnets(policies []Policy) []RemoteSubnet {
	var subnets []RemoteSubnet
	for _, p := range policies {
		var s struct{ DestinationPrefix, ProviderAddress string }
		if p.Type != PolicyRemoteSubnetRoute || json.Unmarshal(p.Settings, &s) != nil {
			continue
		}
		prefix, err1 := netip.ParsePrefix(s.DestinationPrefix)
		node, err2 := netip.ParseAddr(s.ProviderAddress)
		if err1 == nil && err2 == nil {
			subnets = append(subnets, RemoteSubnet{prefix, node})
		}
	}
	slices.SortFunc(subnets, func(a, b RemoteSubnet) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), a.Provider.Compare(b.Provider))
	})
	return subnets
}

// IPConfig is one address of an endpoint.
type IPConfig struct {
	IpAddress    string `json:",omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// EndpointRemote marks an endpoint that is not on this host.
const EndpointRemote uint32 = 1

// Endpoint is a network endpoint: a pod's, or one that stands for an address elsewhere (remote).
type Endpoint struct {
	ID                 string     `json:"ID,omitempty"`
	Name               string     `json:",omitempty"`
	HostComputeNetwork string     `json:",omitempty"` // the network's ID
	Policies           []Policy   `json:",omitempty"`
	IpConfigurations   []IPConfig `json:",omitempty"`
	MacAddress         string     `json:",omitempty"`
	Flags              uint32     `json:",omitempty"`
	SchemaVersion      SchemaVersion
}

// Remote reports whether the endpoint stands for an address that is not on this host.
func (e *Endpoint) Remote() bool { return e.Flags&EndpointRemote != 0 }

// Addrs returns the endpoint's addresses.
func (e *Endpoint) Addrs() []netip.Addr {
	addrs := make([]netip.Addr, 0, len(e.IpConfigurations))
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Provider returns the node of the endpoint's ProviderAddress policy; the zero Addr: it has none.
func (e *Endpoint) Provider() (node netip.Addr) {
	for _, p := range e.Policies {
		var s struct{ ProviderAddress string }
		if p.Type == PolicyProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			node, _ = netip.ParseAddr(s.ProviderAddress)
		}
	}
	return node
}

// ProviderPolicy returns the ProviderAddress policy of a remote endpoint.
func ProviderPolicy(node netip.Addr) Policy {
	settings, _ := json.Marshal(struct{ ProviderAddress string }{node.String()}) // cannot fail
	return Policy{Type: PolicyProviderAddress, Settings: settings}
}

// SameEndpoint reports whether a is, for a proxy's purpose, what b asks for: addresses, MAC, node and
// remoteness.
func SameEndpoint(a, b *Endpoint) bool {
	return a.Remote() == b.Remote() && SameMAC(a.MacAddress, b.MacAddress) &&
		a.Provider() == b.Provider() && slices.Equal(a.Addrs(), b.Addrs())
}

// Digest returns a short form of what SameEndpoint compares: two endpoints with equal digests are equivalent.
func (e *Endpoint) Digest() string {
	return digest(fmt.Sprintf("%t %s %s %v", e.Remote(), canonicalMAC(e.MacAddress), e.Provider(), e.Addrs()))
}

// digest returns the first 64 bits of a SHA-256.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// SameMAC compares two MAC addresses, with hyphens or colons.
func SameMAC(a, b string) bool { return canonicalMAC(a) == canonicalMAC(b) }

func canonicalMAC(s string) string { return strings.ToLower(strings.ReplaceAll(s, ":", "-")) }

// SameID compares two object ids; HNS's two APIs spell them in different case.
func SameID(a, b string) bool { return strings.EqualFold(a, b) }

// CanonicalID returns the form of an id that can be compared with ==.
func CanonicalID(id string) string { return strings.ToLower(strings.Trim(id, "{}")) }
