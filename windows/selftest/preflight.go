package selftest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// The types of networks that a self-test may make, and whether HNS binds them to a network adapter of the
// host, whose connections then break for some seconds.
var networkTypes = map[string]bool{
	"Internal": false, "NAT": false,
	hns.NetworkL2Bridge: true, hns.NetworkOverlay: true,
}

// carriesPods are the types of networks that CNI plugins make. A host that has one may be serving pods.
var carriesPods = []string{hns.NetworkL2Bridge, hns.NetworkOverlay, "L2Tunnel", "Transparent"}

// A Host answers what a self-test asks about this machine besides HNS.
type Host struct {
	Windows string // version
	// Processes returns the names of the running programs but this one.
	Processes func() ([]string, error)
	// Addresses returns the prefixes of this machine's network adapters.
	Addresses func() ([]netip.Prefix, error)
	// Listens returns an error if a process listens on a TCP port.
	Listens func(port int) error
}

// clusterPrograms are programs that only a node of a cluster runs.
var clusterPrograms = []string{"kube-proxy.exe", "kubelet.exe", "flanneld.exe", "calico-node.exe", "nkp.exe"}

// checkProcesses returns an error if this machine is a node at work.
func (h *Host) checkProcesses() error {
	running, err := h.Processes()
	if err != nil {
		return fmt.Errorf("cannot list the processes of this host: %w", err)
	}
	for _, name := range running {
		lower := strings.ToLower(name)
		if slices.Contains(clusterPrograms, lower) || strings.HasPrefix(lower, "nkp-windows-") {
			return fmt.Errorf("%s runs: this host is a node of a cluster. Run the self-test on a host that is none, "+
				"or drain the node and stop kubelet, kube-proxy and nkp first", name)
		}
	}
	return nil
}

// checkAddresses returns an error if this machine uses an address that the self-test would.
func (h *Host) checkAddresses() error {
	prefixes, err := h.Addresses()
	if err != nil {
		return fmt.Errorf("cannot list the addresses of this host: %w", err)
	}
	for _, p := range prefixes {
		if p.Overlaps(everything) {
			return fmt.Errorf("a network adapter has the address %s: the self-test uses %s", p, everything)
		}
	}
	if err := h.Listens(nodePort); err != nil {
		return fmt.Errorf("TCP port %d is in use, which the self-test needs: %w", nodePort, err)
	}
	return nil
}

// checkHNS returns an error if HNS serves anything that the self-test could disturb: networks of pods, the
// test's addresses, load balancers.
func checkHNS(raw hns.Raw) error {
	networks, err := objects(raw, hns.KindNetwork)
	if err != nil {
		return err
	}
	for _, o := range networks {
		n := parseNetwork(o)
		if strings.EqualFold(n.Name, networkName) {
			return fmt.Errorf("HNS has a network %s that no self-test made (id %s): "+
				"rename or delete it (Remove-HnsNetwork)", n.Name, n.ID)
		}
		if slices.ContainsFunc(carriesPods, func(t string) bool { return strings.EqualFold(t, n.Type) }) {
			return fmt.Errorf("HNS has the network %s of type %s, which may carry pods: "+
				"run the self-test on a host without one", n.Name, n.Type)
		}

		prefixes := n.prefixes()
		for _, s := range hns.ParseRemoteSubnets(n.Policies) {
			prefixes = append(prefixes, s.Prefix)
		}
		for _, p := range prefixes {
			if p.Overlaps(everything) {
				return fmt.Errorf("the HNS network %s has the subnet %s: the self-test uses %s", n.Name, p, everything)
			}
		}
	}

	ids, err := raw.IDs(hns.KindLoadBalancer)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("HNS has %d load balancers: this host serves Services. "+
			"Run the self-test on a host that does not", len(ids))
	}
	return nil
}

// objects reads all objects of a kind. One that vanishes meanwhile is left out.
func objects(raw hns.Raw, k hns.Kind) (list []json.RawMessage, err error) {
	ids, err := raw.IDs(k)
	if err != nil {
		return nil, fmt.Errorf("cannot list the objects of HNS: %w", err)
	}
	for _, id := range ids {
		o, err := raw.Query(k, hns.CanonicalID(id))
		if hns.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read an object of HNS: %w", err)
		}
		list = append(list, o)
	}
	return list, nil
}
