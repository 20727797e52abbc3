package rules

import (
	"github.com/nkp-proxy/nkp/k8s"
)

// detector matches the traffic of this node's pods.
type detector struct{ option, value string }

// newDetector takes the first range of the family, as kube-proxy does.
func newDetector(d k8s.Detector, f k8s.Family) detector {
	switch {
	case d.Bridge != "":
		return detector{"-i", d.Bridge}
	case d.InterfacePrefix != "":
		return detector{"-i", d.InterfacePrefix + "+"}
	}
	for _, p := range d.CIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			return detector{"-s", p.Masked().String()}
		}
	}
	return detector{}
}

func (d detector) known() bool { return d.option != "" }

func (d detector) local() []string { return []string{d.option, d.value} }

func (d detector) notLocal() []string { return []string{"!", d.option, d.value} }

// before reports whether iptables-save prints the detector before the destination address.
func (d detector) before() bool { return d.option == "-s" }
