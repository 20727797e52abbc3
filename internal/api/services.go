package api

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// ServiceList is what `nkp services -o json` prints. No list in it is null.
type ServiceList struct {
	Node     string        `json:"node"`
	Mode     string        `json:"mode"`
	Time     time.Time     `json:"time"` // of the counters
	Services []ServiceInfo `json:"services"`
	// Notes are about the whole list, such as that the API server does not answer.
	Notes []string `json:"notes"`
}

// ServiceInfo is one Service port in one family.
type ServiceInfo struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Port      string         `json:"port"`
	Protocol  string         `json:"protocol"`
	Family    string         `json:"family"`
	Frontends []FrontendInfo `json:"frontends"`
	Endpoints []EndpointInfo `json:"endpoints"`
	// MoreFrontends and MoreEndpoints count those that a very long answer leaves out.
	MoreFrontends int `json:"moreFrontends,omitempty"`
	MoreEndpoints int `json:"moreEndpoints,omitempty"`
	// RemovedEndpoints is what becomes of TCP connections to removed endpoints; "": they stay.
	RemovedEndpoints string `json:"removedEndpoints,omitempty"`
	// Counters are null where there are none; CountersNote then says why, or what is not in them.
	Counters     *k8s.Counters `json:"counters"`
	CountersNote string        `json:"countersNote,omitempty"`
	// InForce are the versions of the Service and its EndpointSlices that are in force; nil: those that came
	// last are not yet, or not known to be, or they come from manifests.
	InForce *k8s.Versions `json:"versionsInForce,omitempty"`
	// Problems lists, one line each, what is not served as the objects specify.
	Problems []string `json:"problems"`
	// Connections are connections to its frontends that the conntrack table holds, at most 100 in an answer.
	// MoreConnections counts the others. Both are left out unless asked for.
	Connections     []dpctl.Connection `json:"connections,omitempty"`
	MoreConnections int                `json:"moreConnections,omitempty"`
}

// FrontendInfo is an address and port where a Service port is served.
type FrontendInfo struct {
	Type    string `json:"type"`
	Address string `json:"address"` // "": every address of the node
	Port    uint16 `json:"port"`
	Policy  string `json:"policy"`
	// SourceRanges are the clients that may use it; none: all.
	SourceRanges []string `json:"sourceRanges"`
	ShadowedBy   string   `json:"shadowedBy,omitempty"`
	// NotServed says why this address of the Service is not one of its frontends on this node; "": it is.
	NotServed string `json:"notServed,omitempty"`
}

// EndpointInfo is an endpoint of a Service port, in force or not.
type EndpointInfo struct {
	Address string `json:"address"`
	Node    string `json:"node"`
	Zone    string `json:"zone"`
	Pod     string `json:"pod,omitempty"`
	Local   bool   `json:"local"`
	// Weight is its share of new connections relative to the others', if not 1; 0: none.
	Weight *int `json:"weight,omitempty"`
	// InForce reports whether new connections to any frontend may go there.
	InForce bool `json:"inForce"`
	// Why says why not, or which frontends it is not in force for.
	Why string `json:"why,omitempty"`
	// Connections counts the TCP connections to it that the conntrack table holds; nil: not asked for, or not
	// known.
	Connections *dpctl.Outcomes `json:"connections,omitempty"`
}

// ServiceFilter selects Service ports; what is not set selects all.
type ServiceFilter struct {
	Namespace, Name string
	VIP             netip.Addr // an address of a frontend; an address of the node for NodePorts
	Port            uint16     // of a frontend at VIP; without VIP a NodePort
	Protocol        string     // of the Service port: TCP, UDP or SCTP
	// Connections requests ServiceInfo.Connections and EndpointInfo.Connections, which cost one listing of
	// the conntrack table.
	Connections bool
}

// ParseServiceFilter reads the parameters of a request for Services.
func ParseServiceFilter(q url.Values) (ServiceFilter, error) {
	f := ServiceFilter{Namespace: q.Get("namespace"), Name: q.Get("name"), Protocol: q.Get("protocol")}
	f.Connections, _ = strconv.ParseBool(q.Get("connections"))
	if err := f.VIP.UnmarshalText([]byte(q.Get("vip"))); err != nil {
		return f, fmt.Errorf("vip %q is not an IP address", q.Get("vip"))
	}
	port, err := strconv.ParseUint(cmp.Or(q.Get("port"), "0"), 10, 16)
	if err != nil {
		return f, fmt.Errorf("port %q is not a port", q.Get("port"))
	}
	f.Port = uint16(port)
	return f, nil
}

// Services asks for Service ports and what they have counted.
func (c *Caller) Services(ctx context.Context, f ServiceFilter) (*ServiceList, error) {
	q := url.Values{
		"namespace": {f.Namespace}, "name": {f.Name},
		"protocol": {f.Protocol}, "port": {strconv.Itoa(int(f.Port))},
		"connections": {strconv.FormatBool(f.Connections)},
	}
	if f.VIP.IsValid() {
		q.Set("vip", f.VIP.String())
	}
	return fetch[ServiceList](ctx, c, GetServices, q)
}
