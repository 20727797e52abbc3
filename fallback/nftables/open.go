//go:build linux

package nftables

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Open opens sockets for each family.
func (k kernel) Open(ctx context.Context, p *fallback.Plane) (map[k8s.Family]func(context.Context), error) {
	p.Chosen(k.Name(), "the kernel has what it needs", "", true)
	families, lacking, err := probe(&k.asked)
	if err != nil {
		return nil, err
	} else if lacking != nil {
		p.Log.Warn("no nftables for an address family: its Services are not served", "error", lacking)
	}
	group, serve := new(netlink.Group), map[k8s.Family]func(context.Context){}
	for _, f := range families {
		w, err := newWorker(p.Worker(ctx, f), k.asked.Settings, group)
		if err != nil {
			return nil, err
		}
		serve[f] = w.serve
	}
	return serve, nil
}

// probe returns the families that the kernel can serve by nftables, and why not the others. It is an error if
// none is left, or one that Options.Families asks for is not there.
func probe(o *Options) (families []k8s.Family, lacking, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	for _, f := range o.ToServe() {
		if err := conn.Probe(f, rules.Features()); err != nil {
			lacking = errors.Join(lacking, err)
			continue
		}
		families = append(families, f)
	}
	if len(families) == 0 || lacking != nil && len(o.Families) > 0 {
		return nil, nil, lacking
	}
	return families, lacking, nil
}

// Lacking returns why the kernel cannot serve the families, as Run would say it; nil: it can.
func Lacking(o Options) error {
	_, _, err := probe(&o)
	return err
}
