package windows

import (
	"maps"
	"sync"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// CallCount counts the calls of one HNS function that succeeded, and those that failed. A missing object is
// not a failure.
type CallCount struct {
	OK     uint64 `json:"ok"`
	Failed uint64 `json:"failed"`
}

// calls counts calls into HNS by name. It is safe for concurrent use.
type calls struct {
	loop *dataplane.Loop // a call that returned is progress

	mu sync.Mutex // protects of
	of map[string]CallCount
}

func (c *calls) note(call string, err error) {
	c.loop.Progress()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]CallCount{}
	}
	n := c.of[call]
	if err == nil || hns.IsNotFound(err) {
		n.OK++
	} else {
		n.Failed++
	}
	c.of[call] = n
}

func (c *calls) get() map[string]CallCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := map[string]CallCount{}
	maps.Copy(m, c.of)
	return m
}

// counting is an hns.Host that counts the calls of another.
type counting struct {
	hns.Host
	calls *calls
}

func (c counting) Version() (v hns.Version, err error) {
	defer func() { c.calls.note("version", err) }()
	return c.Host.Version()
}

func (c counting) Network(id string) (n *hns.Network, err error) {
	defer func() { c.calls.note("read_network", err) }()
	return c.Host.Network(id)
}

func (c counting) NetworkNamed(name string) (n *hns.Network, err error) {
	defer func() { c.calls.note("read_network", err) }()
	return c.Host.NetworkNamed(name)
}

func (c counting) NetworkNames() (names []string, err error) {
	defer func() { c.calls.note("list_networks", err) }()
	return c.Host.NetworkNames()
}

func (c counting) Watch(notify func(lost bool)) (stop func(), err error) {
	defer func() { c.calls.note("watch", err) }()
	return c.Host.Watch(notify)
}

func (c counting) EndpointIDs(network string) (ids []string, err error) {
	defer func() { c.calls.note("list_endpoints", err) }()
	return c.Host.EndpointIDs(network)
}

func (c counting) Endpoint(id string) (e *hns.Endpoint, err error) {
	defer func() { c.calls.note("read_endpoint", err) }()
	return c.Host.Endpoint(id)
}

func (c counting) EndpointNamed(name string) (e *hns.Endpoint, err error) {
	defer func() { c.calls.note("read_endpoint", err) }()
	return c.Host.EndpointNamed(name)
}

func (c counting) CreateEndpoint(e *hns.Endpoint) (made *hns.Endpoint, err error) {
	defer func() { c.calls.note("create_endpoint", err) }()
	return c.Host.CreateEndpoint(e)
}

func (c counting) DeleteEndpoint(id string) (err error) {
	defer func() { c.calls.note("delete_endpoint", err) }()
	return c.Host.DeleteEndpoint(id)
}

func (c counting) LoadBalancerIDs() (ids []string, err error) {
	defer func() { c.calls.note("list_load_balancers", err) }()
	return c.Host.LoadBalancerIDs()
}

func (c counting) LoadBalancer(id string) (l *hns.LoadBalancer, err error) {
	defer func() { c.calls.note("read_load_balancer", err) }()
	return c.Host.LoadBalancer(id)
}

func (c counting) LoadBalancerStates() (states map[string]int, err error) {
	defer func() { c.calls.note("read_load_balancer_states", err) }()
	return c.Host.LoadBalancerStates()
}

func (c counting) CreateLoadBalancer(l *hns.LoadBalancer) (made *hns.LoadBalancer, err error) {
	defer func() { c.calls.note("create_load_balancer", err) }()
	return c.Host.CreateLoadBalancer(l)
}

func (c counting) ModifyLoadBalancer(id string, l *hns.LoadBalancer) (now *hns.LoadBalancer, err error) {
	defer func() { c.calls.note("modify_load_balancer", err) }()
	return c.Host.ModifyLoadBalancer(id, l)
}

func (c counting) DeleteLoadBalancer(id string) (err error) {
	defer func() { c.calls.note("delete_load_balancer", err) }()
	return c.Host.DeleteLoadBalancer(id)
}
