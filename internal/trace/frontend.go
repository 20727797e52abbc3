package trace

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// find returns the frontend that the packet matches; nil if none. Other frontends take precedence over
// NodePorts, which are served at every address of the node.
func (e *explanation) find() (port *k8s.ServicePort, f *k8s.Frontend) {
	toNode := e.toNode()
	for name, p := range e.Model.Ports {
		if name.Protocol != e.q.Protocol || name.Family != e.family {
			continue
		}
		for i := range p.Frontends {
			g := &p.Frontends[i]
			if g.Port != e.q.To.Port() || g.ShadowedBy != "" {
				continue
			}
			switch {
			case g.Address.IsValid() && g.Address != e.q.To.Addr():
			case g.Type != k8s.NodePort:
				return p, g
			case toNode, g.Address == k8s.Loopback6 && e.Source == k8s.ThisNode:
				port, f = p, g
			}
		}
	}
	return port, f
}

// toNode reports whether the kernel serves NodePorts at the destination: it is an address of this node.
// Loopback addresses serve the node's own processes only, in IPv4, if --iptables-localhost-nodeports is set.
func (e *explanation) toNode() bool {
	ip := e.q.To.Addr()
	if ip.IsLoopback() {
		return e.Source == k8s.ThisNode && ip.Is4() && e.LocalhostNodePorts
	}
	return slices.Contains(e.Model.Node.Local, ip)
}

// frontendText returns a description of a frontend.
func (e *explanation) frontendText(port *k8s.ServicePort, f *k8s.Frontend) string {
	service := "Service " + portText(port.Name)
	switch f.Type {
	case k8s.ClusterIP:
		return "the cluster IP of " + service
	case k8s.ExternalIP:
		return "an external IP of " + service
	case k8s.LoadBalancer:
		return "a load balancer's address of " + service
	}
	if f.Address.IsValid() {
		return fmt.Sprintf("an address of this node that serves NodePorts (--nodeport-addresses), "+
			"and NodePort %d of %s", f.Port, service)
	}
	return fmt.Sprintf("an address of this node, and NodePort %d of %s", f.Port, service)
}

// portText names a Service port for people.
func portText(n k8s.PortName) string {
	if n.Port == "" {
		return n.ServiceName.String()
	}
	return fmt.Sprintf("%s, port %s", n.ServiceName, n.Port)
}

// rivals adds steps about the Services that claim the same address and port but are shadowed.
func (e *explanation) rivals(owner *k8s.ServicePort) {
	for _, r := range e.shadowed() {
		if r.name == owner.Name {
			continue
		}
		e.step("Service %s wants the same address and port (%s): it gets nothing of this, %s has it",
			portText(r.name), r.f.Type, owner.Name)
	}
}

type rival struct {
	name k8s.PortName
	f    *k8s.Frontend
}

// shadowed returns the frontends at the packet's destination that are not in force, sorted by name.
func (e *explanation) shadowed() (list []rival) {
	for name, p := range e.Model.Ports {
		if name.Protocol != e.q.Protocol || name.Family != e.family {
			continue
		}
		for i := range p.Frontends {
			f := &p.Frontends[i]
			if f.ShadowedBy != "" && f.Port == e.q.To.Port() &&
				(f.Address == e.q.To.Addr() || !f.Address.IsValid() && e.toNode()) {
				list = append(list, rival{name, f})
			}
		}
	}
	slices.SortFunc(list, func(a, b rival) int { return a.name.Compare(b.name) })
	return list
}
