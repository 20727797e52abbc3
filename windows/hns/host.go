package hns

// Host is the HNS of a machine. Every method makes one or a few calls into it, which can take long and cannot
// be cancelled. Errors that HNS gave are *Error. A Host is not safe for concurrent use.
type Host interface {
	// Version asks for HNS's version. It is not cached: HNS may not be up yet.
	Version() (Version, error)
	// Network reads one network; IsNotFound(err) if there is none.
	Network(id string) (*Network, error)
	// NetworkNamed returns a network by name; IsNotFound(err) if there is none. It takes a call more than
	// Network.
	NetworkNamed(name string) (*Network, error)
	// NetworkNames returns the names of all networks.
	NetworkNames() ([]string, error)
	// Watch has notify called after a network was created or deleted, on any goroutine, until stop is called.
	// lost reports that HNS has ended the registration, because its service stopped: Watch must be called
	// again. The error has CodeNotImplemented if this HNS has no notifications. notify must not block.
	Watch(notify func(lost bool)) (stop func(), err error)

	// EndpointIDs lists the endpoints of a network without reading them (one call).
	EndpointIDs(network string) ([]string, error)
	// Endpoint reads one endpoint; IsNotFound(err) if there is none.
	Endpoint(id string) (*Endpoint, error)
	// EndpointNamed returns an endpoint by name, of any network; IsNotFound(err) if there is none.
	EndpointNamed(name string) (*Endpoint, error)
	// CreateEndpoint creates an endpoint on the network it names, and returns it as HNS stored it.
	CreateEndpoint(e *Endpoint) (*Endpoint, error)
	// DeleteEndpoint deletes an endpoint; IsNotFound(err) if there is none.
	DeleteEndpoint(id string) error

	// LoadBalancerIDs lists the load balancers of the host without reading them (one call).
	LoadBalancerIDs() ([]string, error)
	// LoadBalancer reads one load balancer; IsNotFound(err) if there is none.
	LoadBalancer(id string) (*LoadBalancer, error)
	// LoadBalancerStates returns the State of every load balancer by id, as HNS's first API reports it (one
	// call).
	LoadBalancerStates() (map[string]int, error)
	// CreateLoadBalancer creates a load balancer, and returns it as HNS stored it.
	CreateLoadBalancer(l *LoadBalancer) (*LoadBalancer, error)
	// ModifyLoadBalancer replaces the whole body of a load balancer in place, and returns it as HNS has it
	// afterwards: some versions accept the call and do nothing.
	ModifyLoadBalancer(id string, l *LoadBalancer) (*LoadBalancer, error)
	// DeleteLoadBalancer deletes a load balancer; IsNotFound(err) if there is none.
	DeleteLoadBalancer(id string) error
}

// ReadAll returns the objects with these ids: the known ones, and the others as read returns them. An object
// that has vanished since it was listed is left out.
func ReadAll[T any](
	ids []string, known map[string]*T, read func(id string) (*T, error),
) (map[string]*T, error) {
	objects := make(map[string]*T, len(ids))
	for _, id := range ids {
		id = CanonicalID(id)
		o, err := known[id], error(nil)
		if o == nil {
			o, err = read(id)
		}
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		objects[id] = o
	}
	return objects, nil
}
