package serving

import (
	"fmt"
	"net/netip"
)

// Scope selects the traffic that is served.
type Scope uint8

// The scopes.
const (
	// Everything: traffic from pods, from the node itself and from outside. For nodes without Open vSwitch.
	Everything Scope = iota
	// Host: traffic from the node itself and from outside, but not from pods on the Open vSwitch bridge,
	// which is served there.
	Host
	// Own: traffic from the node's processes to the node's own addresses. For nodes whose address is on the
	// Open vSwitch bridge, where only this traffic never reaches the bridge.
	Own
)

// String returns the scope in one word.
func (s Scope) String() string {
	switch s {
	case Host:
		return "host"
	case Own:
		return "own"
	}
	return "everything"
}

// MaxMasqueradeBit is the highest bit of a packet's mark.
const MaxMasqueradeBit = 31

// DefaultMasqueradeBit is the bit of the packet mark that asks for masquerading: kube-proxy's.
const DefaultMasqueradeBit = 14

// Config holds the settings that, in addition to the model, determine the rules.
type Config struct {
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31.
	MasqueradeBit int
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// LocalhostNodePorts serves NodePorts at the IPv4 loopback addresses too.
	LocalhostNodePorts bool
	// KeepInvalid leaves out the rule that drops packets in conntrack state INVALID: where the kernel is set
	// to be liberal about TCP windows, none of these matter.
	KeepInvalid bool
	// RandomFully makes masquerading choose source ports at random; it requires iptables 1.6.2 or later.
	RandomFully bool
	// MasqueradeMin and MasqueradeMax bound the source ports of masqueraded connections, for nodes where
	// others masquerade to the node's address, too. 0 and 0: any.
	MasqueradeMin, MasqueradeMax uint16
	// BriefEndpoints leaves out the comments of endpoint rules, of which there are many.
	BriefEndpoints bool

	// AnswerPing answers pings of Services' addresses.
	AnswerPing bool
	// Canary serves the canaries (CanaryOf).
	Canary bool

	Scope Scope
	// PodDevice is, with Scope Host, the device by which traffic from the bridge's pods enters the node's
	// network stack; "": the model's detector is used.
	PodDevice string
}

// DefaultConfig returns kube-proxy's defaults.
func DefaultConfig() Config {
	return Config{MasqueradeBit: DefaultMasqueradeBit, LocalhostNodePorts: true, RandomFully: true}
}

// Validate returns an error for the first invalid setting.
func (c *Config) Validate() error {
	if c.MasqueradeBit < 0 || c.MasqueradeBit > MaxMasqueradeBit {
		return fmt.Errorf("masquerade bit %d is out of range: must be 0 to %d",
			c.MasqueradeBit, MaxMasqueradeBit)
	}
	return nil
}

// The loopback addresses.
var (
	Loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	Loopback6 = netip.MustParsePrefix("::1/128")
)
