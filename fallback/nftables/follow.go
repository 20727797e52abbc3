//go:build linux

package nftables

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Follow returns the paths that a packet can take through the nftables of all owners, and its steps.
func Follow(ctx context.Context, f k8s.Family, p rules.Packet) ([]rules.Path, []string, error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	return conn.Follow(ctx, f, p)
}

// OfDevice returns the base chains that are bound to a device and see its packets, which Follow does not
// pass.
func OfDevice(device string) ([]string, error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.OfDevice(device)
}

// DiffService returns how the installed chains and sets of nkp's nftables, and the elements of a Service
// port, differ from those that the model calls for, as Diff does. Elements that are not in the model are not
// looked for. The zero name is of no Service port.
func DiffService(m *k8s.Model, o Options, f k8s.Family, n k8s.PortName) ([]string, error) {
	o.KeepInvalid, o.Canary = o.KeepInvalid || fallback.IsLiberal(), false
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
	c := rules.NewCompiler(o.config(lacking), f, &one)
	want := c.Ruleset(&one, nil) // its keys do not depend on the order of endpoints
	if t == nil {
		return compareTable(nil, want), nil
	}

	t.Elements = rules.Elements{}
	for r := range want.Elements {
		if v, ok, err := conn.Element(f, r); err != nil {
			return nil, err
		} else if ok {
			t.Elements[r] = v.Value
		}
	}

	want = c.Ruleset(&one, func(p *k8s.ServicePort) rules.Ports { return c.Adopt(t.Elements, p) })
	return append(compareObjects(t, want), compareElements(t.Elements, want)...), nil
}
