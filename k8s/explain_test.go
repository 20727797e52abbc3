package k8s

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// explained gives a tracker that has read manifests.
func explained(t *testing.T, opts Options, manifests string) *Tracker {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	m := LoadManifests(path)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	tr := NewTracker(opts)
	tr.Apply(m.Objects)
	tr.Flush()
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

var web = PortName{ServiceName{"default", "web"}, "", "TCP", IPv4}

func TestEndpointStates(t *testing.T) {
	for _, c := range []struct{ name, endpoints, want string }{
		{"in force and not ready", `
- {addresses: ['10.0.0.1'], nodeName: n1}
- {addresses: ['10.0.0.2'], nodeName: n2, conditions: {ready: false}}
- {addresses: ['10.0.0.3']}`, `
10.0.0.1:8080 on n1 zone a, Cluster: "", Local: ""
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
			for _, e := range explained(t, Options{NodeName: "n1"}, explainHead+c.endpoints).EndpointStates(web) {
				fmt.Fprintf(&b, "%s on %s zone %s, Cluster: %q, Local: %q\n", e.Addr, e.Node, e.Zone, e.Why, e.WhyLocal)
			}
			if got, want := b.String(), strings.TrimPrefix(c.want, "\n"); got != want {
				t.Errorf("got:\n%swant:\n%s", got, want)
			}
		})
	}
}

// TestEndpointStatesAgree checks on random objects that the states are those of the model, and that each says why not
// exactly where the endpoint is not in force.
func TestEndpointStatesAgree(t *testing.T) {
	w := &world{rand.New(rand.NewPCG(7, 7)), map[Ref]Change{}}
	tr := NewTracker(Options{NodeName: "n1"})
	seen := 0
	for range 20000 {
		tr.Apply([]Change{w.mutate()})
		m, _ := tr.Flush()
		for name, port := range m.Ports {
			var cluster, local []Endpoint
			for _, e := range tr.EndpointStates(name) {
				seen++
				if e.InCluster != (e.Why == "") || e.InLocal != (e.WhyLocal == "") {
					t.Fatalf("%s: %+v", name, e)
				}
				if e.InCluster {
					cluster = append(cluster, Endpoint{e.Addr, e.Local})
				}
				if e.InLocal {
					local = append(local, Endpoint{e.Addr, e.Local})
				}
			}
			if !slices.Equal(cluster, port.ClusterEndpoints) || !slices.Equal(local, port.LocalEndpoints) {
				t.Fatalf("%s: states give %v and %v, the model has %v and %v", name, cluster, local, port.ClusterEndpoints, port.LocalEndpoints)
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d endpoints were seen", seen)
	}
	if tr.EndpointStates(PortName{}) != nil {
		t.Error("a port that does not exist has endpoints")
	}
}

const unservedObjects = `
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

func TestUnserved(t *testing.T) {
	all := explained(t, Options{}, unservedObjects)
	noExternal := explained(t, Options{IgnoreExternalIPs: true}, unservedObjects)
	for _, c := range []struct {
		tracker  *Tracker
		at       string
		protocol Protocol
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
		{all, "10.96.0.2:53", "UDP", false, `[default/other:dns ClusterIP: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "5.6.7.10:53", "UDP", false, `[default/other:dns LoadBalancer: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "192.168.0.1:30053", "UDP", true, `[default/other:dns NodePort: another proxy serves it: its label service.kubernetes.io/service-proxy-name is "cilium"]`},
		{all, "192.168.0.1:30053", "UDP", false, "[]"},
	} {
		got := []string{}
		for _, u := range c.tracker.Unserved(netip.MustParseAddrPort(c.at), c.protocol, c.local) {
			got = append(got, fmt.Sprintf("%s %s: %s", u.Service, u.Type, u.Why))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s/%s: got %v, want %s", c.at, c.protocol, got, c.want)
		}
	}
	named := explained(t, Options{ServiceProxyName: "cilium"}, unservedObjects)
	if got := named.Unserved(netip.MustParseAddrPort("10.96.0.1:80"), "TCP", false); len(got) != 1 || !strings.Contains(got[0].Why, "it has no label") {
		t.Errorf("without the label: %v", got)
	}
}
