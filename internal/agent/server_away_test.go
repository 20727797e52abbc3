package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

type serverAt struct {
	k8s.Source
	url string
}

func (s serverAt) URL() string { return s.url }

// The status warns of an API server that nkp reaches at a ClusterIP.
func TestServedServer(t *testing.T) {
	name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "kubernetes"}, Port: "https", Family: k8s.IPv6}
	a := &Agent{model: &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{name: {Name: name, Frontends: []k8s.Frontend{
		{Type: k8s.ClusterIP, Address: netip.MustParseAddr("fd00:40::1"), Port: 443}}}}}}
	for url, warns := range map[string]bool{
		"https://[fd00:40::1]:443":  true,
		"https://[fd00:40::2]:443":  false,
		"https://api.example:6443":  false,
		"https://192.0.2.10:6443/x": false,
	} {
		a.source = serverAt{url: url}
		if w := a.servedServer(); strings.Contains(w, "ClusterIP of Service default/kubernetes") != warns {
			t.Errorf("%s: %q", url, w)
		}
	}
}
