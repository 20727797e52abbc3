package nft

import (
	"fmt"
	"slices"
)

// clients returns the name of the map that remembers the endpoints of a Service port's clients. It has what cannot be changed about a
// map, so that another timeout makes it another map.
func (b *builder) clients(local bool) string {
	return fmt.Sprintf("clients%s-%s-%d-%d", suffix(local), b.hash, b.AffinitySeconds, b.AffinityLimit)
}

// affinity adds the map of clients for a policy, and the chain that finds a client's endpoint in it. It returns the chain's name.
func (b *builder) affinity(local bool) string {
	name := "affinity" + suffix(local) + "-" + b.hash
	if b.has(name) {
		return name
	}
	slots := b.slots.Cluster
	if local {
		slots = b.slots.Local
	}
	b.out.Affinity.Sets = append(b.out.Affinity.Sets, ClientMap{Set{Name: b.clients(local), Key: []Type{Addr}, Data: []Type{Addr, Port},
		Timeout: b.AffinitySeconds, Limit: b.AffinityLimit}, slots})
	b.add(Chain{Name: name, Rules: []Rule{{Protocol{b.proto}, DNAT{Key: []Field{Saddr}, Map: b.clients(local)}}}})
	b.add(Chain{Name: "remember" + suffix(local) + "-" + b.hash, Rules: []Rule{{RememberEndpoint{b.clients(local)}}}})
	return name
}

// remember adds an element for a frontend that leads to the chain that records a client's endpoint.
func (b *builder) remember(a at, chain string) {
	name := chain + "-" + b.hash
	if chain == "remember-external" && !b.has(name) {
		// As in the chains for external traffic with policy Local: pods and the node itself are served by any endpoint.
		c := Chain{Name: name}
		if cluster := "remember-" + b.hash; b.has(cluster) {
			if b.pods != nil {
				c.Rules = append(c.Rules, Rule{b.pods, Goto{cluster}})
			}
			c.Rules = append(c.Rules, Rule{Local{Saddr}, Goto{cluster}})
		}
		if local := "remember-local-" + b.hash; b.has(local) {
			c.Rules = append(c.Rules, Rule{Goto{local}})
		}
		b.add(c)
	}
	b.out.Elements[a.in(Remember, NodePortRemember)] = Value{Data: "goto " + name}
}

func (b *builder) add(c Chain) { b.out.Affinity.Chains = append(b.out.Affinity.Chains, c) }

func (b *builder) has(chain string) bool {
	return slices.ContainsFunc(b.out.Affinity.Chains, func(c Chain) bool { return c.Name == chain })
}
