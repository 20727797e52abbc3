//go:build linux

package nftables

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// List is part of fallback.Kernel: the elements that Service ports call for, as the kernel has them, and
// their chains. It asks for each element alone, so that the cost does not depend on the number of other
// Services.
func (k kernel) List(
	_ context.Context, m *k8s.Model, o fallback.Options, _ string, to *dataplane.Listing,
) error {
	conn, err := netlink.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range o.Families {
		t, err := conn.ReadChains(f)
		if err != nil || t == nil {
			return err
		}
		c := rules.NewCompiler(rules.Config{Config: o.Config, Settings: k.asked.Settings}, f, m)
		// Keys of elements do not depend on the order of endpoints, so no earlier slots are needed.
		want, fixed := c.Ruleset(m, nil), c.Fixed()
		for _, r := range fixed.Elements {
			delete(want.Elements, r)
		}
		for _, ch := range want.Chains[:len(want.Chains)-len(fixed.Chains)] {
			if has, _, _ := t.HasChain(&ch); has {
				to.Add("chain " + ch.Name)
			}
		}

		refs := slices.SortedFunc(maps.Keys(want.Elements), func(a, b rules.Ref) int {
			return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key))
		})
		for _, r := range refs[:min(len(refs), to.Most)] {
			e, ok, err := conn.Element(f, r)
			if err != nil {
				return err
			}
			set := &rules.Sets[r.Set]
			if text := set.Name + " " + r.Text(f, e.Value); ok && set.Counters {
				to.AddCounted(text, e.Packets, e.Bytes)
			} else if ok {
				to.Add(text)
			}
		}
		to.More += max(0, len(refs)-to.Most)
	}
	return nil
}
