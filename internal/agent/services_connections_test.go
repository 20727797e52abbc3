package agent

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// Connections go to the Service port whose frontend they were opened to, also where two Services share endpoints or a NodePort's number is a
// ClusterIP's port. An answer has maxConnections of them at most, and the number of the others.
func TestConnectionsOfServices(t *testing.T) {
	endpoints := func(list ...string) (out []api.EndpointInfo) {
		for _, a := range list {
			out = append(out, api.EndpointInfo{Address: a, InForce: true})
		}
		return out
	}
	list := &api.ServiceList{Services: []api.ServiceInfo{
		{Name: "web", Protocol: "TCP", Family: "IPv4", Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80"),
			Frontends: []api.FrontendInfo{{Address: "40.0.0.1", Port: 80}, {Port: 30080}, {Address: "40.0.0.9", Port: 80, ShadowedBy: "default/other"}}},
		{Name: "canary", Protocol: "TCP", Family: "IPv4", Endpoints: endpoints("10.0.0.2:80"), Frontends: []api.FrontendInfo{{Address: "40.0.0.2", Port: 80}}},
		{Name: "dns", Protocol: "UDP", Family: "IPv6", Endpoints: endpoints("[fd00::1]:53"), Frontends: []api.FrontendInfo{{Address: "fd00:40::1", Port: 53}}},
	}}
	c := func(protocol, client, frontend, endpoint string) *dpctl.Connection {
		at := netip.MustParseAddrPort
		return &dpctl.Connection{Protocol: k8s.Protocol(protocol), Client: at(client), Frontend: at(frontend), Endpoint: at(endpoint), State: "ESTABLISHED", Expires: 7}
	}
	table := []*dpctl.Connection{
		c("TCP", "10.9.0.1:2", "40.0.0.1:80", "10.0.0.2:80"),
		c("TCP", "10.9.0.1:1", "40.0.0.1:80", "10.0.0.1:80"),
		c("TCP", "10.9.0.1:3", "40.0.0.1:80", "10.0.0.77:80"),     // removed
		c("TCP", "10.9.0.1:4", "40.0.0.2:80", "10.0.0.2:80"),      // canary's
		c("TCP", "10.9.0.1:5", "10.0.0.2:80", "10.0.0.2:80"),      // past any Service
		c("TCP", "10.9.0.1:6", "172.16.0.2:30080", "10.0.0.1:80"), // NodePort
		c("TCP", "10.9.0.1:7", "40.0.0.7:30080", "10.0.0.9:80"),   // another's ClusterIP with that port
		c("TCP", "10.9.0.1:8", "10.0.0.9:30080", "10.0.0.9:30080"),
		c("TCP", "10.9.0.1:9", "40.0.0.9:80", "10.0.0.2:80"), // shadowed: other's
		c("UDP", "[fd00::9]:1", "[fd00:40::1]:53", "[fd00::1]:53"),
		c("UDP", "10.9.0.1:1", "40.0.0.1:80", "10.0.0.2:80"),
	}
	read := func(do func(*dpctl.Connection) error) error {
		for _, c := range table {
			if err := do(c); err != nil {
				return err
			}
		}
		return nil
	}
	addConnections(list, read)
	for i, want := range [][]string{{"10.9.0.1:1", "10.9.0.1:6", "10.9.0.1:2", "10.9.0.1:3"}, {"10.9.0.1:4"}, {"[fd00::9]:1"}} {
		var got []string
		for _, c := range list.Services[i].Connections {
			got = append(got, c.Client.String())
		}
		if !slices.Equal(got, want) || list.Services[i].MoreConnections != 0 {
			t.Errorf("%s: %v, want %v; %+v", list.Services[i].Name, got, want, list.Services[i])
		}
	}
	if o := list.Services[0].Endpoints[0].Connections; o == nil || o.Answered != 2 || list.Services[2].Endpoints[0].Connections != nil {
		t.Errorf("outcomes: %+v", list.Services)
	}

	for i := range list.Services {
		list.Services[i].Connections = nil
	}
	more := list.Services
	table = slices.Repeat([]*dpctl.Connection{table[0], table[3]}, 500)
	addConnections(list, read)
	if n := len(more[0].Connections) + len(more[1].Connections); n != maxConnections || more[0].MoreConnections+more[1].MoreConnections != 1000-n {
		t.Errorf("%d connections, %d and %d more", n, more[0].MoreConnections, more[1].MoreConnections)
	}

	addConnections(list, func(func(*dpctl.Connection) error) error { return errors.New("too many") })
	if len(list.Notes) != 1 || !strings.Contains(list.Notes[0], "cannot list all connections, so that it is not known whether endpoints answered their last ones: too many") {
		t.Errorf("notes %q", list.Notes)
	}
}
