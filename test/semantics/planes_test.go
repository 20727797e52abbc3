//go:build linux

package semantics

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// defaultPlanes returns the planes to test where the environment does not say otherwise; comma-separated.
func defaultPlanes() string {
	if nightly.Is() {
		return "ovs,iptables,nftables"
	}
	return "ovs,nftables"
}

// plane is one data plane: the network it works on and the program that serves it.
type plane struct {
	name string
	bed  testbed.Options
	// flags of nkp that select the plane, beside --mode.
	flags []string
	// command gives the program that serves Services on the cluster's node.
	command func(c *cluster, flags []string) []string
	// inStep reports whether what the manifests say is in force; it is asked again and again.
	inStep func(c *cluster) error
	// cleanUp removes what the proxy, which does not run, has put in force.
	cleanUp func(c *cluster) error
	// state describes the plane for a reader of a failure.
	state func(c *cluster) string
	// lacks says what is different here by design, and why.
	lacks map[feature]string
}

// feature is something that not every data plane has.
type feature string

const (
	// ownAddresses: a process on the node is served when it calls an address that the node itself has.
	ownAddresses feature = "host processes to the node's own addresses"
	// localhost: NodePorts are served on IPv4's loopback addresses.
	localhost feature = "localhost NodePorts"
	// unknownPorts: unserved ports of ClusterIPs are refused, unallocated addresses of Service ranges are dropped.
	unknownPorts feature = "an answer for what no Service has"
	// refuseNode: a process on the node is refused at addresses, other than ClusterIPs, of a Service without endpoints.
	refuseNode feature = "refusing the node itself"
	// forwardAccept: what is forwarded for Services is accepted although the policy of FORWARD is DROP.
	forwardAccept feature = "accepting in FORWARD"
	// ownSettings: settings that kube-proxy does not have.
	ownSettings feature = "nkp's own settings"
	// sctpPorts: SCTP connections are told apart by their ports.
	sctpPorts feature = "SCTP ports"
)

var planes = []plane{
	onSwitch("ovs", testbed.Options{}, nil),
	// The node's address is on a NIC beside the bridge. Not among the defaults: outside traffic whose source is kept has
	// no way back through the node, and pods' traffic is not masqueraded as the node's.
	onSwitch("ovs+iptables", testbed.Options{NodeOutside: true}, nil, "--host-traffic", "iptables"),
	{
		name:    "iptables",
		bed:     testbed.Options{Plane: testbed.Linux},
		command: nkpCommand,
		inStep:  nkpInStep,
		cleanUp: func(c *cluster) error { return nkpCleanup(c, "--mode", "iptables") },
		state:   iptablesState,
	},
	{
		name:    "nftables",
		bed:     testbed.Options{Plane: testbed.Linux},
		command: nkpCommand,
		inStep:  nkpInStep,
		cleanUp: func(c *cluster) error { return nkpCleanup(c, "--mode", "nftables") },
		state:   nftablesState,
		lacks: map[feature]string{
			forwardAccept: "an accept in one table of nftables does not overrule a drop in another; kube-proxy's nftables mode has not either",
		},
	},
	{
		name:    "kube-proxy",
		bed:     testbed.Options{Plane: testbed.Linux},
		command: kubeProxyCommand,
		inStep:  kubeProxyInStep,
		cleanUp: kubeProxyCleanUp,
		state:   iptablesState,
		lacks: map[feature]string{
			ownSettings:  "kube-proxy does not have it",
			unknownPorts: "kube-proxy has it in nftables mode only",
			refuseNode:   "kube-proxy's iptables mode refuses what comes in or is forwarded, and from the node ClusterIPs only",
		},
	},
}

// onSwitch is a plane of nkp on Open vSwitch.
func onSwitch(name string, bed testbed.Options, lacks map[feature]string, flags ...string) plane {
	bed.Standalone = true // what nkp leaves alone is switched
	p := plane{
		name:    name,
		bed:     bed,
		flags:   flags,
		command: func(c *cluster, flags []string) []string { return nkpCommand(c, append(flags, "--ovs-wait", "10s")) },
		inStep: func(c *cluster) error {
			if err := nkpInStep(c); err != nil {
				return err
			}
			return c.Settle()
		},
		cleanUp: func(c *cluster) error {
			if err := nkpCleanup(c, "--mode", "ovs", "--ovsdb", c.DB(), "--bridge", c.Bridge); err != nil {
				return err
			}
			return c.Settle()
		},
		state: switchState,
		lacks: map[feature]string{},
	}
	maps.Copy(p.lacks, lacks)
	if testbed.DefaultDatapath() == testbed.UserDatapath {
		p.lacks[sctpPorts] = "the userspace datapath of Open vSwitch 3.1 tracks SCTP without ports"
	}
	return p
}

// chosenPlanes are the planes to test.
func chosenPlanes(t *testing.T) []plane {
	t.Helper()
	var chosen []plane
	list := os.Getenv("NKP_SEMANTICS_PLANES")
	if list == "" {
		list = defaultPlanes()
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(planes, func(p plane) bool { return p.name == name })
		if i < 0 {
			t.Fatalf("NKP_SEMANTICS_PLANES: there is no data plane %q", name)
		}
		chosen = append(chosen, planes[i])
	}
	return chosen
}
