package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Ruleset is the desired state of one family.
type Ruleset struct {
	Family   k8s.Family
	Devices  []string // patterns of the flowtable's; empty: there is none
	Common   []Set    // those that every table has; the index is a SetID
	Sets     []Set    // the others
	Chains   []Chain
	Elements Elements
}

// Ruleset returns the desired state for a model's Services. prev returns the slots that a Service port has
// had; nil: none.
func (c *Compiler) Ruleset(m *k8s.Model, prev func(*k8s.ServicePort) Ports) *Ruleset {
	fixed := c.Fixed()
	r := &Ruleset{Family: c.Family, Common: c.TableSets(), Devices: c.Devices(), Elements: Elements{}}
	for _, e := range fixed.Elements {
		r.Elements[e] = Value{}
	}

	seen := map[string]bool{}
	for _, p := range c.Ports(m, c.Family) {
		var slots Ports
		if prev != nil {
			slots = prev(p)
		}
		s := c.Service(p, AssignPorts(slots, p))

		maps.Copy(r.Elements, s.Elements)
		for _, e := range s.Shared {
			r.Elements[e] = Value{}
		}
		for _, m := range s.Own.Sets {
			r.Sets = append(r.Sets, m.Set)
		}
		for _, ch := range slices.Concat(s.Chains, s.Own.Chains) {
			if !seen[ch.Name] {
				seen[ch.Name] = true
				r.Chains = append(r.Chains, ch)
			}
		}
	}

	r.Chains = append(r.Chains, fixed.Chains...)
	return r
}

// affinityNote precedes a table with session affinity of IPv6 Services. nft 1.0.6 allots four registers to
// the data that a rule adds to a map, and these need five: "assertion `dreg < ctx->reg_low' failed". No other
// text means the same: the data of a map that leads to dnat begin with the address.
const affinityNote = "# nft 1.0.6 ends with a failed assertion here (IPv6 session affinity); " +
	"nft's sources are mended since 2024. nkp does not need nft.\n"

// String returns the table as input for nft -f. It replaces what there is of nkp's, at once.
func (r *Ruleset) String() string {
	var b strings.Builder
	head := ip(r.Family) + " " + TableName
	if r.Family == k8s.IPv6 && len(r.Sets) > 0 {
		b.WriteString(affinityNote)
	}
	fmt.Fprintf(&b, "add table %s\ndelete table %s\ntable %s {\n", head, head, head)

	lists := make([][]string, setCount)
	for ref, v := range r.Elements {
		lists[ref.Set] = append(lists[ref.Set], ref.Text(r.Family, v))
	}
	for i, s := range r.Common {
		s.write(&b, r.Family, lists[i])
	}
	for _, s := range r.Sets {
		s.write(&b, r.Family, nil)
	}
	if len(r.Devices) > 0 {
		fmt.Fprintf(&b,
			"\t# nkp adds the devices that match: %s\n\tflowtable %s {\n\t\thook ingress priority %d\n\t}\n",
			strings.Join(r.Devices, ", "), Flowtable, priorityFilter)
	}

	for _, c := range r.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook.Type != "" {
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n",
				c.Hook.Type, c.Hook.Hook, c.Hook.Priority)
		}
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", rule.Text(r.Family))
		}
		b.WriteString("\t}\n")
	}

	b.WriteString("}\n")
	return b.String()
}

// write writes a set with its elements.
func (s *Set) write(b *strings.Builder, f k8s.Family, elements []string) {
	kind := "set"
	if s.Verdicts || len(s.Data) > 0 {
		kind = "map"
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\t%s\n", kind, s.Name, s.typeText(f))

	var flags []string
	if s.Interval {
		flags = append(flags, "interval")
	}
	if s.Timeout > 0 {
		flags = append(flags, "dynamic", "timeout")
	}
	if len(flags) > 0 {
		fmt.Fprintf(b, "\t\tflags %s\n", strings.Join(flags, ", "))
	}

	if s.Limit > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", s.Limit)
	}
	if s.Timeout > 0 {
		fmt.Fprintf(b, "\t\ttimeout %ds\n", s.Timeout)
	}
	if s.Counters {
		b.WriteString("\t\tcounter\n")
	}

	if len(elements) > 0 {
		slices.Sort(elements)
		fmt.Fprintf(b, "\t\telements = {\n\t\t\t%s\n\t\t}\n", strings.Join(elements, ",\n\t\t\t"))
	}
	b.WriteString("\t}\n")
}

// typeText returns the types of key and data in nft's syntax. nft has a name for a random number's type only
// in typeof.
func (s *Set) typeText(f k8s.Family) string {
	word, names := "type ", typeNames
	if slices.Contains(s.Key, Number) {
		word, names = "typeof ", typeofNames
	}
	join := func(types []Type) string {
		parts := make([]string, len(types))
		for i, t := range types {
			parts[i] = names[f][t]
		}
		return strings.Join(parts, " . ")
	}
	text := word + join(s.Key)
	return text + cmp.Or(map[bool]string{true: " : verdict"}[s.Verdicts],
		map[bool]string{true: " : " + join(s.Data)}[len(s.Data) > 0])
}

var (
	typeNames = map[k8s.Family][]string{
		k8s.IPv4: {"ipv4_addr", "inet_proto", "inet_service", ""},
		k8s.IPv6: {"ipv6_addr", "inet_proto", "inet_service", ""},
	}
	typeofNames = map[k8s.Family][]string{
		k8s.IPv4: {"ip daddr", "meta l4proto", "th dport", "numgen random mod 2"},
		k8s.IPv6: {"ip6 daddr", "meta l4proto", "th dport", "numgen random mod 2"},
	}
)

// Plan returns the tables of both families as nkp plan -o nft prints them.
func Plan(m *k8s.Model, c Config) string {
	return NewCompiler(c, k8s.IPv4, m).Ruleset(m, nil).String() +
		NewCompiler(c, k8s.IPv6, m).Ruleset(m, nil).String()
}
