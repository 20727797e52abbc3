//go:build linux

package fallback

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// FollowNFT returns the ways that a packet may go through the nftables of all owners, and its steps.
func FollowNFT(ctx context.Context, f k8s.Family, p nft.Packet) ([]nft.Way, []string, error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	return conn.Follow(ctx, f, p)
}

// LegacyRules returns which of the base chains of iptables (legacy) drops what none of its rules accepts, or that they cannot be read; "":
// neither. Otherwise it returns the rules of its tables, as ReadRules does.
func LegacyRules(ctx context.Context, f k8s.Family, chains ...string) (drops string, all map[string]map[string][]string, err error) {
	drops, err = restore.Drops(ctx, []restore.Backend{restore.Legacy}, []k8s.Family{f}, chains...)
	if err != nil || drops != "" {
		return drops, nil, err
	}
	all, err = restore.LegacyRules(ctx, f)
	if errors.Is(err, restore.ErrNoPrograms) {
		return err.Error(), nil, nil
	}
	return "", all, err
}

// DiffService returns how the installed chains and sets of nkp's nftables, and the elements of a Service port, differ from those that the
// model calls for, as Diff does. Elements that are not in the model are not looked for. The zero name is of no Service port.
func DiffService(m *k8s.Model, o Options, f k8s.Family, n k8s.PortName) ([]string, error) {
	o.KeepInvalid = o.KeepInvalid || isLiberal()
	conn, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	t, err := conn.ReadChains(f)
	if err != nil {
		return nil, err
	}
	one := *m
	one.Ports = map[k8s.PortName]*k8s.ServicePort{}
	if sp := m.Ports[n]; sp != nil {
		one.Ports[n] = sp
	}
	lacking, err := o.lacksFlowtable(conn, f)
	if err != nil {
		return nil, err
	}
	c := nft.NewCompiler(o.tableConfig(lacking), f, &one)
	want := c.Ruleset(&one, nil) // its keys do not depend on the order of endpoints
	if t == nil {
		return compareTable(nil, want), nil
	}
	t.Elements = nft.Elements{}
	for r := range want.Elements {
		if v, ok, err := conn.Element(f, r); err != nil {
			return nil, err
		} else if ok {
			t.Elements[r] = v
		}
	}
	want = c.Ruleset(&one, func(n k8s.PortName) nft.Ports { return c.Adopt(t.Elements, m.Ports[n]) })
	return append(compareObjects(t, want), compareElements(t.Elements, want)...), nil
}
