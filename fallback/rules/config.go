package rules

import (
	"fmt"
	"net/netip"
)

// Scope says whose traffic is served.
type Scope uint8

// The scopes.
const (
	// Everything: pods', the node's own and what arrives from outside. For nodes without Open vSwitch.
	Everything Scope = iota
	// Host: the node's own and what arrives from outside, but not what comes from the pods of Open vSwitch's bridge,
	// which is served there.
	Host
	// Own: what the node's processes send to addresses of the node itself. For nodes whose address is on Open vSwitch's
	// bridge, where this alone never gets to the bridge.
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

// Config are the settings that decide, beside the model, what the rules are.
type Config struct {
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31.
	MasqueradeBit int
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// LocalhostNodePorts serves NodePorts at the IPv4 loopback addresses too.
	LocalhostNodePorts bool
	// KeepInvalid leaves out the rule that drops packets which connection tracking finds invalid: where the kernel is
	// set to be liberal about TCP windows there are none that matter.
	KeepInvalid bool
	// RandomFully makes masquerading choose source ports at random; iptables 1.6.2 and later can.
	RandomFully bool
	// MasqueradeMin and MasqueradeMax bound the source ports of what is masqueraded, for where others masquerade as the node
	// too. 0 and 0: any.
	MasqueradeMin, MasqueradeMax uint16
	// BriefEndpoints leaves out the comments of rules that there are many of: those of endpoints.
	BriefEndpoints bool

	Scope Scope
	// PodDevice is, with Scope Host, the device by which traffic from the bridge's pods enters the node's network
	// stack; "": the model's detector tells it.
	PodDevice string
}

// DefaultConfig returns kube-proxy's defaults.
func DefaultConfig() Config {
	return Config{MasqueradeBit: DefaultMasqueradeBit, LocalhostNodePorts: true, RandomFully: true}
}

// Validate reports the first setting that cannot be.
func (c *Config) Validate() error {
	if c.MasqueradeBit < 0 || c.MasqueradeBit > MaxMasqueradeBit {
		return fmt.Errorf("masquerade bit %d is not one of 0 to %d", c.MasqueradeBit, MaxMasqueradeBit)
	}
	return nil
}

// mark returns the mark as iptables-save prints it.
func (c *Config) mark() string { return fmt.Sprintf("%#x", uint32(1)<<c.MasqueradeBit) }

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
)
