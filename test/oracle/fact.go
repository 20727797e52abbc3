package oracle

import (
	"cmp"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Fact is one question that both sides answer.
type Fact struct {
	Port k8s.PortName // zero for claims
	What string       // one of the texts below
	At   string       // the frontend, or the claimed address; "" if it is about the whole port
}

// What facts there are. A fact is missing where the side does not know of the port or the frontend.
const (
	Affinity         = "affinity"
	ClusterEndpoints = "cluster endpoints" // with those of this node marked
	LocalEndpoints   = "local endpoints"
	Serving          = "serving endpoints" // UDP only: with whom a conntrack entry may stay
	FrontendPolicy   = "policy"
	SourceRanges     = "source ranges" // of LoadBalancer frontends
	Traffic          = "traffic"       // the endpoints that a new connection can reach at a frontend, or reject, or drop
	Claim            = "claim"         // who is programmed at an address, port and protocol
)

// NotComputed stands for a list that kube-proxy does not make because no frontend can need it.
const NotComputed = "not computed"

// Facts are the answers of one side.
type Facts map[Fact]string

// Disagreement is a fact that the two sides see differently; "" stands for no answer.
type Disagreement struct {
	Fact
	KubeProxy, Nkp string
}

// Differences returns the facts that differ, sorted.
func Differences(kubeProxy, nkp Facts) []Disagreement {
	var list []Disagreement
	for fact, text := range kubeProxy {
		if nkp[fact] != text {
			list = append(list, Disagreement{fact, text, nkp[fact]})
		}
	}
	for fact, text := range nkp {
		if _, ok := kubeProxy[fact]; !ok {
			list = append(list, Disagreement{fact, "", text})
		}
	}
	slices.SortFunc(list, func(a, b Disagreement) int {
		return cmp.Or(a.Port.Compare(b.Port), cmp.Compare(a.What, b.What), cmp.Compare(a.At, b.At))
	})
	return list
}

// AddClaims adds who is programmed where, from the frontends in force: owners of each claimed address.
func (f Facts) AddClaims(owners map[string][]string) {
	for at, names := range owners {
		f[Fact{What: Claim, At: at}] = Set(names)
	}
}
