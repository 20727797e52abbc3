package differential

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// Reason is an accepted difference. REASONS.md says the same for people.
type Reason struct {
	Name string
	// Correction, if not 0, is what the reason changes in the question put to kube-proxy's code.
	Correction corrections
	// Explains, for reasons that are no corrections, reports whether this is the difference that is accepted.
	Explains func(k *KubeProxy, d oracle.Disagreement) bool
}

// Reasons is the list of accepted differences; there is no other.
var Reasons = []Reason{
	{Name: "unused list", Correction: unusedList},
	{Name: "duplicate address", Correction: duplicates},
	{Name: "relabelled slice", Correction: relabelled},
	{Name: "ready but not serving", Correction: readyServes},
	{Name: "two claims", Explains: twoClaims},
	{Name: "unspecified address", Explains: unspecified},
	{Name: "all of a family", Explains: everyAddress},
}

// explain returns the names of the reasons for a disagreement; none: it is a failure.
func explain(k *KubeProxy, d oracle.Disagreement) (names []string) {
	fix := k.explained(d)
	for _, r := range Reasons {
		if r.Correction != 0 && fix&r.Correction != 0 || r.Explains != nil && r.Explains(k, d) {
			names = append(names, r.Name)
		}
	}
	return names
}

// twoClaims: kube-proxy programs every frontend at an address and port, the last one stays; nkp chooses a cluster IP, then the older
// Service, then the first name, then the first type.
func twoClaims(k *KubeProxy, d oracle.Disagreement) bool {
	if d.What != oracle.Claim || !strings.Contains(d.KubeProxy, " ") {
		return false
	}
	var first k8s.PortName
	var owner string
	var clusterIP bool // the owner's is one
	for _, p := range k.proxiers {
		for n, port := range p.services {
			name := portName(n, p.family)
			for _, f := range frontendsOf(port) {
				if oracle.ClaimText(name, f.address, f.port) != d.At {
					continue
				}
				text := oracle.OwnerText(name, f.typ)
				mine := f.typ == k8s.ClusterIP
				if owner == "" || mine && !clusterIP || mine == clusterIP && (k.before(name, first) || name == first && text < owner) {
					first, owner, clusterIP = name, text, mine
				}
			}
		}
	}
	return d.Nkp == "["+owner+"]"
}

// before returns which of two Service ports has the older claim.
func (k *KubeProxy) before(a, b k8s.PortName) bool {
	created := func(n k8s.PortName) int64 {
		return k.services[k8s.Ref{Kind: k8s.KindService, Namespace: n.Namespace, Name: n.Name}].CreationTimestamp.UnixNano()
	}
	if at, bt := created(a), created(b); at != bt {
		return at < bt
	}
	return a.Compare(b) < 0
}

// unspecified: 0.0.0.0 and :: are no addresses to be reached at; nkp leaves them out, kube-proxy writes rules for them.
func unspecified(_ *KubeProxy, d oracle.Disagreement) bool {
	if d.Nkp != "" {
		return false
	}
	for word := range strings.FieldsSeq(d.At) {
		if a, err := netip.ParseAddrPort(word); err == nil && a.Addr().IsUnspecified() {
			return true
		}
	}
	return false
}

// everyAddress: a range of all addresses is no restriction to both, but kube-proxy's code does not know it when it is
// spelled 4-in-6, and writes a rule that every client meets.
func everyAddress(_ *KubeProxy, d oracle.Disagreement) bool {
	return d.What == oracle.SourceRanges && d.Nkp == oracle.List(nil) && slices.Contains(strings.Fields(strings.Trim(d.KubeProxy, "[]")), "0.0.0.0/0")
}
