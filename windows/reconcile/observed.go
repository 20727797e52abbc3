package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// observed holds the known objects of HNS: read once, then kept up to date by enumerations and by nkp's own
// changes.
type observed struct {
	network       string // id
	endpoints     map[string]*hns.Endpoint
	loadBalancers map[string]*hns.LoadBalancer

	byAddr map[netip.Addr][]string // ids of endpoints, sorted; nil: compute it
	again  map[string]bool         // ids of load balancers to read again: changing them failed
}

// read reads everything.
func (o *observed) read(h hns.Host, network string) error {
	now := observed{network: network, again: map[string]bool{}}
	if err := now.follow(h); err != nil {
		return err
	}
	*o = now
	return nil
}

// follow drops objects that are gone and reads new ones. If it fails, o stays unchanged.
func (o *observed) follow(h hns.Host) error {
	es, err := endpoints(h, o.network, o.endpoints)
	if err != nil {
		return err
	}
	known := maps.Clone(o.loadBalancers)
	for id := range o.again {
		delete(known, id)
	}
	ls, err := loadBalancers(h, known)
	if err != nil {
		return err
	}
	o.endpoints, o.loadBalancers, o.byAddr = es, ls, nil
	clear(o.again)
	return nil
}

// endpoints returns the endpoints of a network, by id. It reads those that are not known.
func endpoints(h hns.Host, network string, known map[string]*hns.Endpoint) (map[string]*hns.Endpoint, error) {
	ids, err := h.EndpointIDs(network)
	if err != nil {
		return nil, fmt.Errorf("cannot list the endpoints of HNS: %w", err)
	}
	es, err := hns.ReadAll(ids, known, h.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("cannot read an endpoint of HNS: %w", err)
	}
	return es, nil
}

// loadBalancers returns the load balancers of the host, by id. It reads those that are not known.
func loadBalancers(h hns.Host, known map[string]*hns.LoadBalancer) (map[string]*hns.LoadBalancer, error) {
	ids, err := h.LoadBalancerIDs()
	if err != nil {
		return nil, fmt.Errorf("cannot list the load balancers of HNS: %w", err)
	}
	ls, err := hns.ReadAll(ids, known, h.LoadBalancer)
	if err != nil {
		return nil, fmt.Errorf("cannot read a load balancer of HNS: %w", err)
	}
	return ls, nil
}

// reread reads one object again.
func (o *observed) reread(h hns.Host, id string) error {
	if o.endpoints[id] != nil {
		e, err := h.Endpoint(id)
		if hns.IsNotFound(err) {
			o.dropEndpoint(id)
			return nil
		}
		if err == nil {
			o.setEndpoint(e)
		}
		return err
	}
	if o.loadBalancers[id] == nil {
		return nil // it is gone
	}
	l, err := h.LoadBalancer(id)
	if hns.IsNotFound(err) {
		delete(o.loadBalancers, id)
		return nil
	}
	if err == nil {
		o.loadBalancers[id] = l
	}
	return err
}

func (o *observed) setEndpoint(e *hns.Endpoint) {
	o.endpoints[hns.CanonicalID(e.ID)] = e
	o.byAddr = nil
}

func (o *observed) dropEndpoint(id string) {
	delete(o.endpoints, id)
	o.byAddr = nil
}

// at returns the ids of the endpoints that have an address, those of this host first.
func (o *observed) at(a netip.Addr) []string {
	if o.byAddr == nil {
		o.byAddr = map[netip.Addr][]string{}
		for _, remote := range []bool{false, true} {
			for _, id := range slices.Sorted(maps.Keys(o.endpoints)) {
				if e := o.endpoints[id]; e.Remote() == remote {
					for _, addr := range e.Addrs() {
						o.byAddr[addr] = append(o.byAddr[addr], id)
					}
				}
			}
		}
	}
	return o.byAddr[a]
}

// holders are the load balancers that hold a frontend: those in alone hold no other frontend, those in shared
// do.
type holders struct {
	alone, shared []string
}

// frontends indexes the load balancers by frontend.
func (o *observed) frontends() map[plan.Frontend]holders {
	index := map[plan.Frontend]holders{}
	for _, id := range slices.Sorted(maps.Keys(o.loadBalancers)) {
		fs := plan.FrontendsOf(o.loadBalancers[id])
		for _, f := range fs {
			h := index[f]
			if len(fs) == 1 {
				h.alone = append(h.alone, id)
			} else {
				h.shared = append(h.shared, id)
			}
			index[f] = h
		}
	}
	return index
}

// needed returns what load balancers need: the ids of the endpoints that they send to, and their source VIPs.
func (o *observed) needed() map[string]bool {
	n := map[string]bool{}
	for _, l := range o.loadBalancers {
		n[l.SourceVIP] = true
		for _, e := range l.HostComputeEndpoints {
			n[hns.CanonicalID(e)] = true
		}
	}
	return n
}
