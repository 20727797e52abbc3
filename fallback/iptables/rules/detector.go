package rules

import (
	"github.com/nkp-proxy/nkp/k8s"
)

// detector matches the traffic of this node's pods.
type detector struct{ option, value string }

// newDetectors returns detectors each of which matches some pods: one, or one for each range of the family;
// none if pods cannot be recognized.
func newDetectors(d k8s.Detector, f k8s.Family) (list []detector) {
	switch {
	case d.Bridge != "":
		return []detector{{"-i", d.Bridge}}
	case d.InterfacePrefix != "":
		return []detector{{"-i", d.InterfacePrefix + "+"}}
	}
	for _, p := range d.CIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			list = append(list, detector{"-s", p.Masked().String()})
		}
	}
	return list
}

func (d detector) local() []string { return []string{d.option, d.value} }

func (d detector) notLocal() []string { return []string{"!", d.option, d.value} }
