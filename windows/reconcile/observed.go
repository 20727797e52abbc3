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
	es, err := endpoints(h, network)
	if err != nil {
		return err
	}
	ls, err := loadBalancers(h)
	if err != nil {
		return err
	}
	*o = observed{network: network, endpoints: es, loadBalancers: ls, again: map[string]bool{}}
	return nil
}

// endpoints reads the endpoints of a network, by id.
func endpoints(h hns.Host, network string) (map[string]*hns.Endpoint, error) {
	list, err := h.Endpoints(network)
	if err != nil {
		return nil, fmt.Errorf("cannot read the endpoints of HNS: %w", err)
	}
	m := make(map[string]*hns.Endpoint, len(list))
	for _, e := range list {
		m[hns.CanonicalID(e.ID)] = e
	}
	return m, nil
}

// loadBalancers reads the load balancers of the host, by id.
func loadBalancers(h hns.Host) (map[string]*hns.LoadBalancer, error) {
	list, err := h.LoadBalancers()
	if err != nil {
		return nil, fmt.Errorf("cannot read the load balancers of HNS: %w", err)
	}
	m := make(map[string]*hns.LoadBalancer, len(list))
	for _, l := range list {
		m[hns.CanonicalID(l.ID)] = l
	}
	return m, nil
}

// follow drops objects that are gone and reads new ones. If it fails, o stays unchanged.
func (o *observed) follow(h hns.Host) (err error) {
	ids, err := h.EndpointIDs(o.network)
	if err != nil {
		return fmt.Errorf("cannot list the endpoints of HNS: %w", err)
	}
	es, err := follow(o.endpoints, nil, ids, h.Endpoint)
	if err != nil {
		return fmt.Errorf("cannot read an endpoint of HNS: %w", err)
	}
	if ids, err = h.LoadBalancerIDs(); err != nil {
		return fmt.Errorf("cannot list the load balancers of HNS: %w", err)
	}
	ls, err := follow(o.loadBalancers, o.again, ids, h.LoadBalancer)
	if err != nil {
		return fmt.Errorf("cannot read a load balancer of HNS: %w", err)
	}
	o.endpoints, o.loadBalancers, o.byAddr = es, ls, nil
	clear(o.again)
	return nil
}

func follow[T any](known map[string]*T, again map[string]bool, ids []string, read func(string) (*T, error)) (map[string]*T, error) {
	now := make(map[string]*T, len(ids))
	for _, id := range ids {
		id = hns.CanonicalID(id)
		if o := known[id]; o != nil && !again[id] {
			now[id] = o
			continue
		}
		o, err := read(id)
		if hns.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		now[id] = o
	}
	return now, nil
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
