//go:build linux

package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// openNFT opens sockets for each family.
func (p *Plane) openNFT() (workers []familyWorker, err error) {
	p.lookAtKernel()
	p.mu.Lock()
	p.status.Backend, p.status.Reason, p.status.RandomFully = backendNFTables, "the kernel has what it needs", true
	p.mu.Unlock()
	families, lacking, err := probeNFT(&p.opts)
	if err != nil {
		return nil, err
	} else if lacking != nil {
		p.log.Warn("no nftables for an address family: its Services are not served", "error", lacking)
	}
	var group netlink.Group
	for _, f := range p.opts.families() {
		if !slices.Contains(families, f) {
			p.drop(f)
			continue
		}
		w, err := newNFTWorker(f, &p.opts, &group, p.inbox[f], p.loops[f], func(change func(*FamilyStatus)) { p.report(f, change) })
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	return workers, nil
}

// probeNFT returns the families that the kernel can serve by nftables, and why not the others. It is an error if none is left, or one
// that Options.Families asks for is not there.
func probeNFT(o *Options) (families []k8s.Family, lacking, err error) {
	conn, err := netlink.Open()
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	for _, f := range o.families() {
		if err := conn.Probe(f, nft.Features()); err != nil {
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

// WhyNotNFTables returns why nftables must not take the place of iptables on this node; "": it may. It may not where the kernel lacks
// something, nor where it would serve less: iptables accepts Service traffic in its chains FORWARD and INPUT, and an accept in another
// table does not overrule a drop in these.
func WhyNotNFTables(ctx context.Context, o Options) string {
	if _, _, err := probeNFT(&o); err != nil {
		return err.Error()
	}
	drops, err := DropsBesideNFTables(ctx, o)
	if err != nil {
		return err.Error()
	}
	return drops
}

// DropsBesideNFTables returns which chain of iptables drops traffic that only iptables can accept; "": none. It runs iptables, whose lock
// another program may hold: an error means that the answer is not known.
func DropsBesideNFTables(ctx context.Context, o Options) (string, error) {
	chains := []string{"INPUT", "FORWARD"}
	if o.Scope == serving.Own {
		chains = chains[:1]
	}
	drops, err := restore.Drops(ctx, []restore.Backend{restore.NFT, restore.Legacy}, o.families(), chains...)
	if err != nil {
		return "", fmt.Errorf("cannot find out whether iptables drops what no rule accepts: %w", err)
	}
	return drops, nil
}
