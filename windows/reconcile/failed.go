package reconcile

import (
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// FailedLoadBalancer says which attempts at load balancers failed, in the terms of kube-proxy's metrics.
type FailedLoadBalancer struct {
	Op     string // create, update or delete
	Family k8s.Family
	// Type is clusterip, nodeport, externalip, ingressip or healthcheck; unknown: of a Service address that
	// is no longer wanted.
	Type  string
	Error string // hns.Class
}

var operations = map[Op]string{
	CreateLoadBalancer:  "create",
	ModifyLoadBalancer:  "update",
	ReplaceLoadBalancer: "update",
	DeleteLoadBalancer:  "delete",
}

var types = map[string]string{
	string(k8s.ClusterIP): "clusterip", string(k8s.NodePort): "nodeport", string(k8s.ExternalIP): "externalip",
	string(k8s.LoadBalancer): "ingressip", plan.KindHealthCheck: "healthcheck",
}

// countFailed counts a step that HNS refused. The number of combinations is bounded by the values above.
func (e *Engine) countFailed(s *Step, err error) {
	e.counts.Failed++
	op := operations[s.Op]
	if op == "" {
		return
	}
	of := FailedLoadBalancer{Op: op, Family: s.family(), Type: "unknown", Error: hns.Class(err)}
	switch {
	case s.LoadBalancer != nil:
		of.Type = types[s.LoadBalancer.Kind]
	case !s.frontend.VIP.IsValid():
		of.Type = "nodeport"
	}
	if e.counts.FailedLoadBalancers == nil {
		e.counts.FailedLoadBalancers = map[FailedLoadBalancer]uint64{}
	}
	e.counts.FailedLoadBalancers[of]++
}
