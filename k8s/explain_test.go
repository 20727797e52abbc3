package k8s_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// explained returns a tracker that has read manifests.
func explained(t *testing.T, opts k8s.Options, manifests string) *k8s.Tracker {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	_, tr := plan(t, path, opts)
	return tr
}

const explainHead = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/zone: b}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints:
`

var web = k8s.PortName{k8s.ServiceName{"default", "web"}, "", "TCP", k8s.IPv4}

func TestEndpointStates(t *testing.T) {
	for _, c := range []struct{ name, endpoints, want string }{
		{"in force and not ready", `
- {addresses: ['10.0.0.1'], nodeName: n1, targetRef: {kind: Pod, namespace: default, name: web-7}}
- {addresses: ['10.0.0.2'], nodeName: n2, conditions: {ready: false}, targetRef: {kind: VirtualMachine, name: web-8}}
- {addresses: ['10.0.0.3']}`, `
10.0.0.1:8080 on n1 zone a pod default/web-7, Cluster: "", Local: ""
10.0.0.2:8080 on n2 zone b, Cluster: "not ready", Local: "on n2"
10.0.0.3:8080 on  zone , Cluster: "", Local: "on no known node"
`},
		{"terminating", `
- {addresses: ['10.0.0.1'], nodeName: n2}
- {addresses: ['10.0.0.2'], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ['10.0.0.3'], nodeName: n1, conditions: {ready: false, serving: false, terminating: true}}`, `
10.0.0.1:8080 on n2 zone b, Cluster: "", Local: "on n2"
10.0.0.2:8080 on n1 zone a, Cluster: "terminating, and others are ready", Local: ""
10.0.0.3:8080 on n1 zone a, Cluster: "terminating, no longer serving", Local: "terminating, no longer serving"
`},
		{"zones", `
- {addresses: ['10.0.0.1'], nodeName: n1, hints: {forZones: [{name: a}]}}
- {addresses: ['10.0.0.2'], nodeName: n1, hints: {forZones: [{name: b}, {name: c}]}}
- {addresses: ['10.0.0.3'], nodeName: n2, hints: {forZones: [{name: b}]}}`, `
10.0.0.1:8080 on n1 zone a, Cluster: "", Local: ""
10.0.0.2:8080 on n1 zone a, Cluster: "for zones b, c (topology hints)", Local: ""
10.0.0.3:8080 on n2 zone b, Cluster: "for zone b (topology hints)", Local: "on n2"
`},
		{"nodes", `
- {addresses: ['10.0.0.1'], nodeName: n1, hints: {forNodes: [{name: n1}]}}
- {addresses: ['10.0.0.2'], nodeName: n2, hints: {forNodes: [{name: n2}], forZones: [{name: a}]}}`, `
10.0.0.1:8080 on n1 zone a, Cluster: "", Local: ""
10.0.0.2:8080 on n2 zone b, Cluster: "for node n2 (traffic distribution)", Local: "on n2"
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			for _, e := range explained(t, k8s.Options{NodeName: "n1"}, explainHead+c.endpoints).EndpointStates(web) {
				fmt.Fprintf(&b, "%s on %s zone %s", e.Addr, e.Node, e.Zone)
				if e.Pod != "" {
					fmt.Fprintf(&b, " pod %s", e.Pod)
				}
				fmt.Fprintf(&b, ", Cluster: %q, Local: %q\n", e.Why, e.WhyLocal)
			}
			if got, want := b.String(), strings.TrimPrefix(c.want, "\n"); got != want {
				t.Errorf("got:\n%swant:\n%s", got, want)
			}
		})
	}
}

const notServedObjects = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  type: LoadBalancer
  ports: [{port: 80, nodePort: 30080}]
  externalIPs: [1.2.3.4]
status: {loadBalancer: {ingress: [{ip: 5.6.7.8, ipMode: Proxy}, {ip: 5.6.7.9}]}}
---
apiVersion: v1
kind: Service
metadata: {name: other, labels: {service.kubernetes.io/service-proxy-name: cilium}}
spec:
  clusterIP: 10.96.0.2
  type: LoadBalancer
  ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053}]
status: {loadBalancer: {ingress: [{ip: 5.6.7.10}]}}
---
apiVersion: v1
kind: Service
metadata: {name: headless, labels: {service.kubernetes.io/service-proxy-name: cilium}}
spec: {clusterIP: None, ports: [{port: 80}]}
`

func TestNotServed(t *testing.T) {
	all := explained(t, k8s.Options{}, notServedObjects)
	noExternal := explained(t, k8s.Options{IgnoreExternalIPs: true}, notServedObjects)
	noBalancer := explained(t, k8s.Options{IgnoreLoadBalancers: true}, notServedObjects)
	skipped := explained(t, k8s.Options{SkipServices: []k8s.ServiceName{{Namespace: "default", Name: "web"}}}, notServedObjects)
	for _, c := range []struct {
		tracker  *k8s.Tracker
		at       string
		protocol k8s.Protocol
		local    bool
		want     string
	}{
		{all, "5.6.7.8:80", "TCP", false, "[default/web LoadBalancer: the load balancer wants the traffic itself: its ingress has ipMode Proxy]"},
		{all, "5.6.7.8:81", "TCP", false, "[]"},
		{all, "5.6.7.8:80", "UDP", false, "[]"},
		{all, "5.6.7.9:80", "TCP", false, "[]"},
		{all, "10.96.0.1:80", "TCP", false, "[]"},
		{all, "1.2.3.4:80", "TCP", false, "[]"},
		{noExternal, "1.2.3.4:80", "TCP", false, "[default/web ExternalIP: externalIPs are switched off (feature gate AllowServiceExternalIPs)]"},
		{noBalancer, "5.6.7.9:80", "TCP", false, "[default/web LoadBalancer: the addresses of load balancers are left alone (--load-balancer-addresses=false)]"},
		{skipped, "10.96.0.1:80", "TCP", false, "[default/web ClusterIP: --skip-services leaves it to another program of the node]"},
		{skipped, "1.2.3.4:80", "TCP", false, "[default/web ExternalIP: --skip-services leaves it to another program of the node]"},
		{skipped, "5.6.7.9:80", "TCP", false, "[default/web LoadBalancer: --skip-services leaves it to another program of the node]"},
		{skipped, "192.168.0.1:30080", "TCP", true, "[default/web NodePort: --skip-services leaves it to another program of the node]"},
		{all, "10.96.0.2:53", "UDP", false, `[default/other:dns ClusterIP: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "5.6.7.10:53", "UDP", false, `[default/other:dns LoadBalancer: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "192.168.0.1:30053", "UDP", true, `[default/other:dns NodePort: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "192.168.0.1:30053", "UDP", false, "[]"},
	} {
		got := []string{}
		for _, u := range c.tracker.NotServed(netip.MustParseAddrPort(c.at), c.protocol, c.local) {
			got = append(got, fmt.Sprintf("%s %s: %s", u.Service, u.Type, u.Why))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s/%s: got %v, want %s", c.at, c.protocol, got, c.want)
		}
	}
	named := explained(t, k8s.Options{ServiceProxyName: "cilium"}, notServedObjects)
	if got := named.NotServed(netip.MustParseAddrPort("10.96.0.1:80"), "TCP", false); len(got) != 1 || !strings.Contains(got[0].Why, "it has no label") {
		t.Errorf("without the label: %v", got)
	}
}
