package reconcile

import (
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// Op is what a step does.
type Op string

// The operations. Replace deletes and creates, where HNS cannot modify in place.
const (
	CreateEndpoint      Op = "create endpoint"
	DeleteEndpoint      Op = "delete endpoint"
	CreateLoadBalancer  Op = "create load balancer"
	ModifyLoadBalancer  Op = "modify load balancer"
	ReplaceLoadBalancer Op = "replace load balancer"
	DeleteLoadBalancer  Op = "delete load balancer"
)

// Step is one change of HNS. It prints itself: the list of steps is the dry run.
type Step struct {
	Op  Op
	ID  string // of the object; "": it has none yet
	Why string

	Endpoint     *plan.Endpoint     // to create
	LoadBalancer *plan.LoadBalancer // to create, modify or replace

	repair   bool          // replace it although it is as wanted: HNS reports that it is not healthy
	frontend plan.Frontend // of a load balancer to delete
	addr     netip.Addr    // of an endpoint to delete
}

// key identifies the object of a step, for recording failures.
func (s *Step) key() string {
	switch s.Op {
	case CreateEndpoint:
		return "endpoint " + s.Endpoint.Addr.String()
	case CreateLoadBalancer, ModifyLoadBalancer, ReplaceLoadBalancer:
		return "load balancer " + s.LoadBalancer.Frontend.String()
	case DeleteLoadBalancer:
		return "load balancer " + s.ID
	}
	return "endpoint " + s.ID
}

// Object returns the name of the step's object, for messages.
func (s *Step) Object() string {
	switch s.Op {
	case CreateEndpoint:
		return fmt.Sprintf("endpoint %s (%s)", s.Endpoint.Addr, s.Endpoint.Purpose)
	case DeleteEndpoint:
		return fmt.Sprintf("endpoint %s (id %s)", s.addr, s.ID)
	case DeleteLoadBalancer:
		return fmt.Sprintf("load balancer %s (id %s)", s.frontend, s.ID)
	}
	o := fmt.Sprintf("load balancer %s (%s)", s.LoadBalancer.Frontend, s.LoadBalancer.Kind)
	if s.ID != "" {
		o = fmt.Sprintf("load balancer %s (%s, id %s)", s.LoadBalancer.Frontend, s.LoadBalancer.Kind, s.ID)
	}
	return o
}

// Port returns the Service port the step is for; the zero PortName if it is for none.
func (s *Step) Port() k8s.PortName {
	if s.LoadBalancer == nil {
		return k8s.PortName{}
	}
	return s.LoadBalancer.Service
}

// family returns the family of the object.
func (s *Step) family() k8s.Family {
	switch {
	case s.LoadBalancer != nil:
		return s.LoadBalancer.Frontend.Family
	case s.Endpoint != nil:
		return k8s.FamilyOf(s.Endpoint.Addr)
	case s.Op == DeleteEndpoint:
		return k8s.FamilyOf(s.addr)
	}
	return s.frontend.Family
}

// String returns the step in one line.
func (s *Step) String() string {
	verb := string(s.Op[:6])
	if s.Op == ReplaceLoadBalancer {
		verb = "replace"
	}
	text := verb + " " + s.Object()
	if n := s.Port(); n != (k8s.PortName{}) {
		text += " of " + n.String()
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	return text
}
