package hnsfake

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// SetVersion changes the version that HNS says and acts by.
func (s *Server) SetVersion(v hns.Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = v
}

// SetEcho has every object altered when HNS returns it, and ids when it lists them (o then holds nothing else). kind is "Endpoint",
// "LoadBalancer" or "Network". What HNS stores stays as it is.
func (s *Server) SetEcho(alter func(kind string, o Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.echo = alter
}

// echoed returns an object as HNS returns it.
func (s *Server) echoed(k kind, o Object) Object {
	if s.echo == nil {
		return o
	}
	c := decode[Object](o)
	s.echo(string(k), c)
	return c
}

// AddNetwork makes a network as a CNI plugin does, and returns its id. routes are pod prefix -> node.
func (s *Server) AddNetwork(name, typ string, routes map[string]string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(network, Object{"Name": name, "Type": typ, "Policies": routePolicies(routes), "SchemaVersion": map[string]any{"Major": 2, "Minor": 0}})
}

func routePolicies(routes map[string]string) []any {
	policies := []any{}
	for _, prefix := range slices.Sorted(maps.Keys(routes)) {
		policies = append(policies, map[string]any{"Type": hns.PolicyRemoteSubnetRoute, "Settings": map[string]any{
			"DestinationPrefix": prefix, "IsolationId": 4096, "ProviderAddress": routes[prefix], "DistributedRouterMacAddress": "00-11-22-33-44-55"}})
	}
	return policies
}

// RemoveNetwork deletes a network with its endpoints.
func (s *Server) RemoveNetwork(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeNetwork(id)
}

func (s *Server) removeNetwork(id string) {
	for eid, o := range maps.Clone(s.objects[endpoint]) {
		if o["HostComputeNetwork"] == id {
			s.del(endpoint, eid)
		}
	}
	s.del(network, id)
}

// AddPod makes the endpoint of a pod on this host, as a CNI plugin does; id "" lets HNS choose.
func (s *Server) AddPod(net, id, name, mac string, addrs ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ips := []any{}
	for _, a := range addrs {
		ips = append(ips, map[string]any{"IpAddress": a})
	}
	return s.add(endpoint, Object{"ID": id, "Name": name, "HostComputeNetwork": net, "MacAddress": mac, "IpConfigurations": ips,
		"SchemaVersion": map[string]any{"Major": 2, "Minor": 0}})
}

// AddLoadBalancer makes a load balancer behind the proxy's back; any body is taken.
func (s *Server) AddLoadBalancer(o Object) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(loadBalancer, o)
}

// ChangeLoadBalancer changes a load balancer behind the proxy's back.
func (s *Server) ChangeLoadBalancer(id string, change func(Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := decode[Object](s.objects[loadBalancer][id])
	change(o)
	s.put(loadBalancer, id, o)
}

// SetState changes the State of a load balancer; id "": of all, now and later.
func (s *Server) SetState(id string, state int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.states[id] = state
		return
	}
	s.forAll = state
	for id := range s.objects[loadBalancer] {
		s.states[id] = state
	}
}

// HideStates has load balancers reported without a State.
func (s *Server) HideStates() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noStates = true
}

// AddEndpoint makes an endpoint behind the proxy's back; any body is taken.
func (s *Server) AddEndpoint(o Object) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(endpoint, o)
}

// DropLoadBalancer and DropEndpoint delete behind the proxy's back.
func (s *Server) DropLoadBalancer(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.del(loadBalancer, id)
}

// DropEndpoint deletes an endpoint behind the proxy's back.
func (s *Server) DropEndpoint(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.del(endpoint, id)
}

// LoadBalancers returns the load balancers, in the order they were made.
func (s *Server) LoadBalancers() []hns.LoadBalancer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ls []hns.LoadBalancer
	for _, id := range s.order[loadBalancer] {
		ls = append(ls, decode[hns.LoadBalancer](s.objects[loadBalancer][id]))
	}
	return ls
}

// Endpoints returns the endpoints, in the order they were made.
func (s *Server) Endpoints() []hns.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var es []hns.Endpoint
	for _, id := range s.order[endpoint] {
		es = append(es, decode[hns.Endpoint](s.objects[endpoint][id]))
	}
	return es
}

// Dump returns the load balancers and remote endpoints as sorted lines of JSON in which endpoints are written by address: two
// hosts that behave the same have the same dump.
func (s *Server) Dump() string {
	name := map[string]string{}
	var lines []string
	for _, e := range s.Endpoints() {
		addrs := make([]string, len(e.IpConfigurations))
		for i, c := range e.IpConfigurations {
			addrs[i] = c.IpAddress
		}
		name[e.ID] = strings.Join(addrs, "+")
		if e.Remote() {
			node := e.Provider().String()
			if !e.Provider().IsValid() {
				node = "-"
			}
			lines = append(lines, "endpoint "+name[e.ID]+" mac="+strings.ToLower(e.MacAddress)+" node="+node)
		}
	}
	for _, l := range s.LoadBalancers() {
		for i, id := range l.HostComputeEndpoints {
			l.HostComputeEndpoints[i] = cmp.Or(name[hns.CanonicalID(id)], "missing")
		}
		slices.Sort(l.HostComputeEndpoints)
		l.ID = ""
		text, _ := json.Marshal(l)
		lines = append(lines, "loadbalancer "+string(text))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// Calls returns the log of calls since the last call of Calls, and empties it.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls
	s.calls = nil
	return c
}

// Count counts the calls of a function in a log; "": all.
func Count(calls []Call, fn string) (n int) {
	for _, c := range calls {
		if fn == "" || c.Func == fn {
			n++
		}
	}
	return n
}

// Dangling counts the endpoints that were deleted while a load balancer referred to them.
func (s *Server) Dangling() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dangling
}

// OpenHandles counts the handles that were not closed.
func (s *Server) OpenHandles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// SetRoutes replaces the remote subnets of a network, as a CNI plugin does when nodes join and leave.
func (s *Server) SetRoutes(net string, routes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[network][net]["Policies"] = routePolicies(routes)
}
