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

// List is part of fallback.Kernel: the elements that Service ports call for, as the kernel has them, and their chains. It asks for each
// element alone, so that the cost does not depend on the number of other Services.
func (k kernel) List(ctx context.Context, m *k8s.Model, o fallback.Options, _ string, to *dataplane.Listing) error {
	conn, err := netlink.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range o.Families {
		t, err := conn.ReadChains(f)
		if err != nil {
			return err
		} else if t == nil {
			continue
		}
		c := rules.NewCompiler(rules.Config{Config: o.Config, Settings: k.asked.Settings}, f, m)
		for _, n := range slices.SortedFunc(maps.Keys(m.Ports), k8s.PortName.Compare) {
			if n.Family != f {
				continue
			}
			s := c.Service(m.Ports[n], rules.AssignPorts(rules.Ports{}, m.Ports[n])) // its keys do not depend on the order of endpoints
			if err := listElements(ctx, conn, f, &s, to); err != nil {
				return err
			}
			for _, ch := range slices.Concat(s.Chains, s.Affinity.Chains) {
				if has, _, _ := t.HasChain(&ch); has {
					to.Add(dataplane.Object{Text: "chain " + ch.Name})
				}
			}
		}
	}
	return nil
}

// listElements adds the installed elements of a Service port.
func listElements(ctx context.Context, conn *netlink.Conn, f k8s.Family, s *rules.Service, to *dataplane.Listing) error {
	refs := slices.AppendSeq(slices.Clone(s.Shared), maps.Keys(s.Elements))
	slices.SortFunc(refs, func(a, b rules.Ref) int { return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key)) })
	for _, r := range slices.Compact(refs) {
		if to.Full() {
			to.More++
			continue
		}
		e, ok, err := conn.Element(f, r)
		switch text := rules.Sets[r.Set].Name + " " + r.Text(f, e.Value); {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case ok && rules.Sets[r.Set].Counters:
			to.Add(dataplane.Counted(text, e.Packets, e.Bytes))
		case ok:
			to.Add(dataplane.Object{Text: text})
		}
	}
	return nil
}
