package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

const (
	// connectionsWait bounds how long conntrack entries are read for an answer about Services.
	connectionsWait = 3 * time.Second
	// maxConnections bounds the single connections in an answer.
	maxConnections = 100
)

// addConnections adds what the conntrack table has of the listed Services, which it reads once.
func (p *planes) addConnections(ctx context.Context, list *api.ServiceList) {
	if len(list.Services) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectionsWait)
	defer cancel()
	addConnections(list, func(do func(*dpctl.Connection) error) error { return p.connections(ctx, do) })
}

// addConnections adds connections, counts the TCP connections to each endpoint in force by their outcome, and
// adds a problem where many failed. If the table cannot be read, a note has the reason.
func addConnections(list *api.ServiceList, read func(do func(*dpctl.Connection) error) error) {
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

	found, shown := newConnectionFinder(list), 0
	err := read(func(c *dpctl.Connection) error {
		if o := outcomes[c.Endpoint]; o != nil {
			o.Add(c)
		}
		if s := found.serviceOf(c); s != nil && shown < maxConnections {
			shown++
			s.Connections = append(s.Connections, *c)
		} else if s != nil {
			s.MoreConnections++
		}
		return nil
	})
	if err != nil {
		list.Notes = append(list.Notes, "cannot list all connections, so that it is not known whether "+
			"endpoints answered their last ones: "+err.Error())
		return
	}

	for i := range list.Services {
		slices.SortFunc(list.Services[i].Connections, func(a, b dpctl.Connection) int {
			return cmp.Or(a.Endpoint.Compare(b.Endpoint), a.Client.Compare(b.Client))
		})
	}
	each(func(s *api.ServiceInfo, e *api.EndpointInfo, at netip.AddrPort) {
		e.Connections = outcomes[at]
		if problem := outcomes[at].Problem(time.Now()); problem != "" {
			s.Problems = append(s.Problems, fmt.Sprintf("endpoint %s: %s", e.Address, problem))
		}
	})
}

// connectionFinder finds the Service port of a connection by its frontend. A NodePort is at any address:
// there the endpoint must be one of the list's, too, because a ClusterIP's port may have the same number.
type connectionFinder struct {
	frontends map[connectionKey]*api.ServiceInfo
	endpoints map[netip.AddrPort]bool
}

// connectionKey is a frontend. at has the zero Addr for a NodePort.
type connectionKey struct {
	protocol, family string
	at               netip.AddrPort
}

func newConnectionFinder(list *api.ServiceList) *connectionFinder {
	f := &connectionFinder{map[connectionKey]*api.ServiceInfo{}, map[netip.AddrPort]bool{}}
	for i := range list.Services {
		s := &list.Services[i]
		for _, front := range s.Frontends {
			if front.ShadowedBy == "" {
				addr, _ := netip.ParseAddr(front.Address)
				f.frontends[connectionKey{s.Protocol, s.Family, netip.AddrPortFrom(addr, front.Port)}] = s
			}
		}
		for _, e := range s.Endpoints {
			at, _ := netip.ParseAddrPort(e.Address)
			f.endpoints[at] = true
		}
	}
	return f
}

// serviceOf returns the Service port whose frontend a connection was opened to; nil: none of the list's.
func (f *connectionFinder) serviceOf(c *dpctl.Connection) *api.ServiceInfo {
	key := connectionKey{string(c.Protocol), k8s.FamilyOf(c.Frontend.Addr()).String(), c.Frontend}
	if s := f.frontends[key]; s != nil || !f.endpoints[c.Endpoint] || c.Endpoint == c.Frontend {
		return s
	}
	key.at = netip.AddrPortFrom(netip.Addr{}, c.Frontend.Port())
	return f.frontends[key]
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
