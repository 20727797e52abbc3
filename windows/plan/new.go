package plan

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// defaultAffinitySeconds is Kubernetes' default of sessionAffinityConfig.clientIP.timeoutSeconds.
const defaultAffinitySeconds = 10800

// New computes the HNS objects for these Service ports.
func New(
	ports map[k8s.PortName]*k8s.ServicePort, checks map[k8s.ServiceName]k8s.HealthCheck, facts *Facts,
) *Wanted {
	b := builder{
		facts:    facts,
		features: facts.features(),
		checks:   checks,
		router:   k8s.Router{Loopback: true}, // NodePorts are served at all addresses

		w:       &Wanted{Endpoints: map[netip.Addr]*Endpoint{}, LoadBalancers: map[Frontend]*LoadBalancer{}},
		reasons: map[Unsupported]bool{},
	}
	if facts.Network.Overlay() && facts.SourceVIP.IsValid() {
		b.endpoint(facts.SourceVIP, ForSourceVIP, hns.Endpoint{MacAddress: facts.HostMAC})
	}
	for _, name := range sortedNames(ports) {
		b.port(ports[name])
	}
	for _, l := range b.checksLater { // the Services' own frontends come first
		b.add(l)
	}
	for u := range b.reasons {
		b.w.Unsupported = append(b.w.Unsupported, u)
	}
	slices.SortFunc(b.w.Unsupported, Unsupported.Compare)
	return b.w
}

func sortedNames(ports map[k8s.PortName]*k8s.ServicePort) []k8s.PortName {
	names := make([]k8s.PortName, 0, len(ports))
	for n := range ports {
		names = append(names, n)
	}
	slices.SortFunc(names, k8s.PortName.Compare)
	return names
}

type builder struct {
	facts    *Facts
	features hns.Features
	checks   map[k8s.ServiceName]k8s.HealthCheck
	router   k8s.Router
	w        *Wanted
	reasons  map[Unsupported]bool

	checksLater []*LoadBalancer
}

func (b *builder) unsupported(name k8s.PortName, format string, args ...any) {
	b.reasons[Unsupported{name.ServiceName, fmt.Sprintf(format, args...)}] = true
}

// port adds the load balancers of one Service port.
func (b *builder) port(sp *k8s.ServicePort) {
	if reason := b.facts.serves(sp.Name.Family); reason != "" {
		b.unsupported(sp.Name, "%s", reason)
		return
	}
	for i := range sp.Frontends {
		if f := &sp.Frontends[i]; b.router.Serves(f) {
			b.frontend(sp, f)
		}
	}
}

// frontend adds the load balancer of one frontend, its endpoints, and its health check.
func (b *builder) frontend(sp *k8s.ServicePort, f *k8s.Frontend) {
	protocol := hns.ProtocolNumber(string(sp.Name.Protocol))
	key := Frontend{VIP: f.Address, Protocol: protocol, Port: f.Port, Family: sp.Name.Family}
	if f.Type == k8s.NodePort && f.Address.IsValid() {
		b.unsupported(sp.Name,
			"NodePorts cannot be restricted to some of the node's addresses: HNS serves them on all")
		key.VIP = netip.Addr{}
	}
	if sp.Name.Protocol == v1.ProtocolSCTP {
		b.unsupported(sp.Name, "SCTP: Kubernetes does not support it on Windows. HNS is given the load balancer, "+
			"as kube-proxy does, and may not forward")
	}
	if len(f.SourceRanges) > 0 {
		b.unsupported(sp.Name,
			"loadBalancerSourceRanges are not enforced: HNS load balancers do not support client ranges")
	}

	preserve := b.preserve(sp, f)
	route := b.router.Routes(sp, f)[k8s.Outside] // HNS does not distinguish clients
	endpoints := sp.Endpoints(route.Set)
	if preserve {
		endpoints = sp.LocalEndpoints
	}
	endpoints = b.onePort(sp, endpoints)
	if len(endpoints) == 0 {
		return // HNS can neither reject nor drop: without endpoints there is no load balancer
	}

	l := &LoadBalancer{Frontend: key, Service: sp.Name, Kind: string(f.Type), Local: map[netip.Addr]bool{}}
	l.Body = hns.LoadBalancer{
		SourceVIP: text(b.facts.sourceVIP(endpoints)),
		PortMappings: []hns.PortMapping{{
			Protocol:         key.Protocol,
			InternalPort:     endpoints[0].Addr.Port(),
			ExternalPort:     key.Port,
			DistributionType: b.distribution(sp),
			Flags:            mappingFlags(f.Type, preserve),
		}},
		SchemaVersion: hns.Schema2,
		Flags:         b.flags(sp, f, route, preserve),
	}
	if key.VIP.IsValid() {
		l.Body.FrontendVIPs = []string{key.VIP.String()}
	}

	if !b.add(l) {
		return
	}
	for _, e := range endpoints {
		b.backend(l, e)
	}
	if b.facts.Network.Overlay() && f.Type == k8s.ClusterIP {
		b.endpoint(key.VIP, ForVIP, hns.Endpoint{Flags: hns.EndpointRemote, MacAddress: b.facts.HostMAC,
			Policies: provider(b.facts.NodeIP)})
	}
	if f.Type == k8s.LoadBalancer {
		b.healthCheck(sp, f, preserve)
	}
}

// add enters a load balancer unless its frontend is taken; the first Service port in order keeps it.
func (b *builder) add(l *LoadBalancer) bool {
	if _, taken := b.w.LoadBalancers[l.Frontend]; taken {
		return false
	}
	b.w.LoadBalancers[l.Frontend] = l
	return true
}

// onePort returns the endpoints that one load balancer can serve. Its port mapping has a single internal
// port: where endpoints listen on different ports, those of the most frequent one (the lowest of these) are
// taken.
func (b *builder) onePort(sp *k8s.ServicePort, endpoints []k8s.Endpoint) []k8s.Endpoint {
	count := map[uint16]int{}
	for _, e := range endpoints {
		count[e.Addr.Port()]++
	}
	if len(count) < 2 {
		return endpoints
	}
	var best uint16
	for port, n := range count {
		if n > count[best] || n == count[best] && port < best {
			best = port
		}
	}
	other := func(e k8s.Endpoint) bool { return e.Addr.Port() != best }
	kept := slices.DeleteFunc(slices.Clone(endpoints), other)
	b.unsupported(sp.Name, "port %q: its endpoints listen on %d different ports; HNS serves one, %d, and %d of "+
		"%d endpoints get no traffic",
		sp.Name.Port, len(count), best, len(endpoints)-len(kept), len(endpoints))
	return kept
}

// backend adds an endpoint to a load balancer. If it is not on this host, it also plans a remote endpoint.
func (b *builder) backend(l *LoadBalancer, e k8s.Endpoint) {
	a := e.Addr.Addr()
	if slices.Contains(l.Backends, a) {
		return
	}
	l.Backends = append(l.Backends, a)
	if e.Local {
		l.Local[a] = true
		return
	}
	body := hns.Endpoint{Flags: hns.EndpointRemote, MacAddress: RemoteMAC(a)}
	if b.facts.Network.Overlay() {
		node := b.facts.Network.Provider(a)
		if !node.IsValid() {
			node = b.facts.NodeIP // outside the cluster: this node routes it
		}
		body.Policies = provider(node)
	}
	b.endpoint(a, ForBackend, body)
}

// provider returns the policy that tunnels to a node; none if the node is not known.
func provider(node netip.Addr) []hns.Policy {
	if !node.IsValid() {
		return nil
	}
	return []hns.Policy{hns.ProviderPolicy(node)}
}

// endpoint adds an endpoint; the first body for an address stays.
func (b *builder) endpoint(a netip.Addr, purpose Purpose, body hns.Endpoint) {
	if _, ok := b.w.Endpoints[a]; ok {
		return
	}
	body.HostComputeNetwork = b.facts.Network.ID
	body.IpConfigurations = []hns.IPConfig{{IpAddress: a.String()}}
	body.SchemaVersion = hns.Schema2
	b.w.Endpoints[a] = &Endpoint{Addr: a, Purpose: purpose, Body: body}
}

// healthCheck forwards the health checks that arrive at a load balancer's address to the host. They are HTTP:
// always TCP.
func (b *builder) healthCheck(sp *k8s.ServicePort, f *k8s.Frontend, preserve bool) {
	if !b.facts.HealthEndpoint.IsValid() {
		return
	}
	if sp.Name.Family != k8s.IPv4 {
		b.unsupported(sp.Name,
			"health checks that arrive at %s are not forwarded: the endpoint of the host has IPv4 only", f.Address)
		return
	}

	port := b.facts.HealthzPort
	if c, ok := b.checks[sp.Name.ServiceName]; ok {
		port = c.Port
	}
	if port == 0 {
		return
	}

	tcp := hns.ProtocolNumber("TCP")
	l := &LoadBalancer{
		Frontend: Frontend{VIP: f.Address, Protocol: tcp, Port: port, Family: sp.Name.Family},
		Service:  sp.Name, Kind: KindHealthCheck,
		Backends: []netip.Addr{b.facts.HealthEndpoint},
		Local:    map[netip.Addr]bool{b.facts.HealthEndpoint: true},
	}
	mapping := hns.PortMapping{Protocol: tcp, InternalPort: port, ExternalPort: port}
	if preserve {
		mapping.Flags = hns.MappingUseMux | hns.MappingPreserveDIP
	}
	l.Body = hns.LoadBalancer{
		SourceVIP:     text(b.facts.SourceVIP),
		FrontendVIPs:  []string{f.Address.String()},
		PortMappings:  []hns.PortMapping{mapping},
		SchemaVersion: hns.Schema2,
	}
	b.checksLater = append(b.checksLater, l)
}

// KindHealthCheck is the Kind of load balancers that forward health checks.
const KindHealthCheck = "HealthCheck"

// RemoteMAC returns the MAC address of the remote endpoint of an address: 02-11 and 32 bits of it. It never
// appears on a wire.
func RemoteMAC(a netip.Addr) string {
	if a.Is4() {
		v := a.As4()
		return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", v[0], v[1], v[2], v[3])
	}
	v := a.As16()
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", v[15], v[14], v[13], v[12])
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
