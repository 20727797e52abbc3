package iptables

import (
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// item is an object that needs rules: a Service port or a health check node port.
type item struct {
	port  *k8s.ServicePort
	check *k8s.HealthCheck
}

func (i item) empty() bool { return i == item{} }

// checkName returns the key of a Service's health check among the items.
func checkName(n k8s.ServiceName, f k8s.Family) k8s.PortName {
	return k8s.PortName{ServiceName: n, Protocol: "health check", Family: f}
}

// itemsOf returns the items of a family that an update changes; an empty item was deleted.
func itemsOf(u *dataplane.Update, f k8s.Family) map[k8s.PortName]item {
	items := make(map[k8s.PortName]item, len(u.Ports)+len(u.HealthChecks))
	for n, sp := range u.Ports {
		items[n] = item{port: sp}
	}
	for n, h := range u.HealthChecks {
		items[checkName(n, f)] = item{check: h}
	}
	return items
}
