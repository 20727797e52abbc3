package rules

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// clients returns the name of the map that remembers the endpoints of a Service port's clients. It has what
// cannot be changed about a map, so that another timeout makes it another map.
func (b *builder) clients(of k8s.Set) string {
	return fmt.Sprintf("clients%s-%s-%d-%d", suffix(of), b.hash, b.AffinitySeconds, b.AffinityLimit)
}

// affinity adds the map of clients for a set of endpoints, and the chain that finds a client's endpoint in
// it. It returns the chain's name.
func (b *builder) affinity(of k8s.Set) string {
	name := "affinity" + suffix(of) + "-" + b.hash
	if b.has(name) {
		return name
	}
	b.out.Own.Sets = append(b.out.Own.Sets, ClientMap{
		Set{
			Name: b.clients(of), Key: []Type{Addr}, Data: []Type{Addr, Port},
			Timeout: b.AffinitySeconds, Limit: b.AffinityLimit,
		},
		b.slots[of],
	})
	b.add(Chain{
		Name:  name,
		Rules: []Rule{{Protocol{b.proto}, DNAT{Key: []Field{Saddr}, Map: b.clients(of)}}},
	})
	b.add(Chain{
		Name:  "remember" + suffix(of) + "-" + b.hash,
		Rules: []Rule{{RememberEndpoint{b.clients(of)}}},
	})
	return name
}

// remember adds an element for a frontend that leads to the chain that records a client's endpoint.
func (b *builder) remember(a at, chain string) {
	name := chain + "-" + b.hash
	if chain == "remember-external" && !b.has(name) {
		b.add(Chain{Name: name, Rules: b.external(k8s.OnNode, func(r k8s.Route, _ bool) Rule {
			if of := "remember" + suffix(r.Set) + "-" + b.hash; b.has(of) {
				return Rule{Goto{of}}
			}
			return nil
		})})
	}
	b.out.Elements[a.ref(Remember, NodePortRemember)] = Value{Data: "goto " + name}
}

func (b *builder) add(c Chain) { b.out.Own.Chains = append(b.out.Own.Chains, c) }

func (b *builder) has(chain string) bool {
	return slices.ContainsFunc(b.out.Own.Chains, func(c Chain) bool { return c.Name == chain })
}
