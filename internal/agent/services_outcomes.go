package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
)

// outcomesWait bounds how long conntrack entries are read for an answer about Services.
const outcomesWait = 3 * time.Second

// addOutcomes counts the TCP connections to each endpoint in force by their outcome, and adds a problem where
// many failed. It reads the whole conntrack table once. If that fails, a note has the reason.
func (p *planes) addOutcomes(ctx context.Context, list *api.ServiceList) {
	outcomes := map[netip.AddrPort]*dpctl.Outcomes{}
	each := func(do func(s *api.ServiceInfo, e *api.EndpointInfo, at netip.AddrPort)) {
		for i := range list.Services {
			s := &list.Services[i]
			for j := range s.Endpoints {
				if e := &s.Endpoints[j]; e.InForce && s.Protocol == "TCP" {
					at, _ := netip.ParseAddrPort(e.Address)
					do(s, e, at)
				}
			}
		}
	}

	each(func(_ *api.ServiceInfo, _ *api.EndpointInfo, at netip.AddrPort) {
		outcomes[at] = &dpctl.Outcomes{}
	})
	if len(outcomes) == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, outcomesWait)
	defer cancel()
	err := p.connections(ctx, func(c *dpctl.Connection) error {
		if o := outcomes[c.Endpoint]; o != nil {
			o.Add(c)
		}
		return nil
	})
	if err != nil {
		list.Notes = append(list.Notes,
			"cannot read whether endpoints answered their last TCP connections: "+err.Error())
		return
	}

	each(func(s *api.ServiceInfo, e *api.EndpointInfo, at netip.AddrPort) {
		e.Connections = outcomes[at]
		if problem := outcomes[at].Problem(time.Now()); problem != "" {
			s.Problems = append(s.Problems, fmt.Sprintf("endpoint %s: %s", e.Address, problem))
		}
	})
}

// connections calls do for each conntrack entry of nkp's zone on the bridge or, with iptables, of the
// kernel's zone 0. They include connections that go directly to an endpoint.
func (p *planes) connections(ctx context.Context, do func(*dpctl.Connection) error) error {
	switch {
	case p.bridge != nil:
		return p.bridge.Connections(ctx, do)
	case p.fallback != nil:
		for _, f := range dataplane.Families {
			if err := conntrack.Each(ctx, f, 0, do); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("HNS does not show connections")
}
