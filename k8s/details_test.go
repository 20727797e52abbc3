package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestParsePrefix checks that CIDRs are read as Kubernetes reads them (k8s.io/utils/net, ParseCIDRSloppy).
func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3/8":          "10.0.0.0/8",
		"10.0.0.0/0":          "0.0.0.0/0",
		"010.000.001.002/031": "10.0.1.2/31",
		"2001:DB8::1/64":      "2001:db8::/64",
		"::ffff:10.1.2.3/120": "10.1.2.0/24",
		"::ffff:10.1.2.3/96":  "0.0.0.0/0",
		"::ffff:10.1.2.3/95":  "::fffe:0:0/95",
		"10.0.0.1":            "",
		"10.0.0.1/33":         "",
		"10.0.0/8":            "",
		"::1/129":             "",
		"/8":                  "",
		"":                    "",
	} {
		p, ok := ParsePrefix(text)
		if ok != (want != "") || ok && p != netip.MustParsePrefix(want) {
			t.Errorf("%q is %v, %v; want %q", text, p, ok, want)
		}
	}
}

// webService returns a Service that is served in every way.
func webService() *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			ExternalIPs: []string{"1.2.3.4"}, SessionAffinity: v1.ServiceAffinityClientIP, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort: 31000, Selector: map[string]string{"app": "web"},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP, NodePort: 30080, TargetPort: intstr.FromInt32(8080)}},
		},
		Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: "5.6.7.8"}}}},
	}
}

func webSlice() *discoveryv1.EndpointSlice {
	name, port, node := "http", int32(8080), "n1"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node}},
	}
}

// TestOneProperty checks that a change of any one property of a Service is handed on as a change of its port, and of its health
// check where it has to do with that. What was handed on before is the same again afterwards.
func TestOneProperty(t *testing.T) {
	seconds := int32(60)
	for name, c := range map[string]struct {
		change func(*v1.Service)
		health bool
	}{
		"nothing": {change: nil},
		"affinity timeout": {change: func(s *v1.Service) {
			s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}},
		"no affinity":          {change: func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityNone }},
		"preserve destination": {change: func(s *v1.Service) { s.Annotations = map[string]string{"preserve-destination": "true"} }},
		"consistent choice": {change: func(s *v1.Service) {
			s.Spec.SessionAffinity, s.Spec.ExternalTrafficPolicy = v1.ServiceAffinityNone, v1.ServiceExternalTrafficPolicyCluster
			s.Annotations = map[string]string{AnnotationConsistent: "true"}
		}, health: true},
		"source ranges": {change: func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.168.0.0/16"} }},
		"policy":        {change: func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster }, health: true},
		"port":          {change: func(s *v1.Service) { s.Spec.Ports[0].Port = 81 }},
		"node port":     {change: func(s *v1.Service) { s.Spec.Ports[0].NodePort = 30081 }},
		"external IP":   {change: func(s *v1.Service) { s.Spec.ExternalIPs = []string{"1.2.3.5"} }},
	} {
		t.Run(name, func(t *testing.T) {
			tr := NewTracker(Options{NodeName: "n1"})
			tr.SetService(webService(), Origin{})
			tr.SetEndpointSlice(webSlice(), Origin{})
			tr.Flush()
			s := webService()
			if c.change != nil {
				c.change(s)
			}
			tr.SetService(s, Origin{})
			_, changes := tr.Flush()
			if got := len(changes.Ports); got != 1 && c.change != nil || got != 0 && c.change == nil {
				t.Errorf("%d ports changed", got)
			}
			if got := len(changes.HealthChecks) == 1; got != c.health {
				t.Errorf("health checks changed: %v", changes.HealthChecks)
			}
		})
	}
}

// TestHealthCheckPort checks that only type LoadBalancer with externalTrafficPolicy Local has a health check node port, whatever
// number is in an object.
func TestHealthCheckPort(t *testing.T) {
	for _, c := range []struct {
		typ    v1.ServiceType
		policy v1.ServiceExternalTrafficPolicy
		port   int32
		want   uint16
	}{
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, 31000, 31000},
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, 65535, 65535},
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, 0, 0},
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, -1, 0},
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, 65536 + 80, 0},
		{v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyCluster, 31000, 0},
		{v1.ServiceTypeLoadBalancer, "", 31000, 0},
		{v1.ServiceTypeNodePort, v1.ServiceExternalTrafficPolicyLocal, 31000, 0},
	} {
		s := webService()
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = c.typ, c.policy, c.port
		if got := healthCheckPort(s); got != c.want {
			t.Errorf("%s, %q, %d: %d, want %d", c.typ, c.policy, c.port, got, c.want)
		}
	}
}

// TestWithoutNodeName checks that an endpoint without a node is not local where the node's name is not known.
func TestWithoutNodeName(t *testing.T) {
	tr := NewTracker(Options{})
	sl := webSlice()
	sl.Endpoints[0].NodeName = nil
	tr.SetService(webService(), Origin{})
	tr.SetEndpointSlice(sl, Origin{})
	m, _ := tr.Flush()
	for name, p := range m.Ports {
		if len(p.ClusterEndpoints) != 1 || len(p.LocalEndpoints) != 0 {
			t.Errorf("%v: endpoints %v, local %v", name, p.ClusterEndpoints, p.LocalEndpoints)
		}
	}
	if len(m.Ports) != 1 {
		t.Errorf("%d Service ports", len(m.Ports))
	}
	if h := m.HealthChecks[ServiceName{"default", "web"}]; h.Port != 31000 || h.Local4 != 0 {
		t.Errorf("health check: %+v, want port 31000 and no local endpoint", h)
	}
}

// TestDeletedServiceTakesNoMemory checks that nothing stays of a Service that is gone with its slices.
func TestDeletedServiceTakesNoMemory(t *testing.T) {
	tr := NewTracker(Options{NodeName: "n1"})
	s, sl := webService(), webSlice()
	tr.SetService(s, Origin{})
	tr.SetEndpointSlice(sl, Origin{})
	tr.Flush()
	tr.DeleteService(s.Namespace, s.Name)
	tr.DeleteEndpointSlice(sl.Namespace, sl.Name)
	tr.Flush()
	if n := len(tr.services) + len(tr.dirty); n > 0 {
		t.Errorf("%d Services are left", n)
	}
}

// TestObjectsOfAnyServer checks what an API server would refuse, should one send it all the same: it is ignored with a warning that
// names the field, and the rest is served.
func TestObjectsOfAnyServer(t *testing.T) {
	name, zero, minus, large := "http", int32(0), int32(-1), int32(65536)
	for want, change := range map[string]func(*v1.Service, *discoveryv1.EndpointSlice){
		"spec.externalIPs[1]: a Service cannot be reached at 0.0.0.0": func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "0.0.0.0")
		},
		"status.loadBalancer.ingress[1].ip: a Service cannot be reached at ::": func(s *v1.Service, _ *discoveryv1.EndpointSlice) {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: "::"})
		},
		"ports[1].port: is not set": func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name})
		},
		"ports[1].port: is not set: this port is ignored": func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Port: &zero})
		},
		"ports[1].port: -1 is out of range": func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Port: &minus})
		},
		"ports[1].port: 65536 is out of range": func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Port: &large})
		},
		"ports[1].name: is not set": func(_ *v1.Service, sl *discoveryv1.EndpointSlice) {
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Port: &large})
		},
	} {
		tr := NewTracker(Options{NodeName: "n1"})
		tr.Flush()
		s, sl := webService(), webSlice()
		tr.SetService(s, Origin{})
		tr.SetEndpointSlice(sl, Origin{})
		m, _ := tr.Flush()
		served := frontendsOf(m)
		s, sl = webService(), webSlice()
		change(s, sl)
		tr.SetService(s, Origin{})
		tr.SetEndpointSlice(sl, Origin{})
		m, _ = tr.Flush()
		var warnings []string
		for _, w := range m.Warnings {
			warnings = append(warnings, w.String())
		}
		if text := strings.Join(warnings, "\n"); !strings.Contains(text, want) {
			t.Errorf("warnings:\n%s\nwant one with %q", text, want)
		}
		if got := frontendsOf(m); got != served {
			t.Errorf("%s: serves\n%s\nwant\n%s", want, got, served)
		}
	}
}

// frontendsOf writes down what a model serves.
func frontendsOf(m *Model) string {
	var b strings.Builder
	for _, p := range m.Ports {
		fmt.Fprintln(&b, p.Name, p.ClusterEndpoints)
		for _, f := range p.Frontends {
			fmt.Fprintln(&b, f.Type, f.Address, f.Port)
		}
	}
	return b.String()
}

// TestAffinityDefault checks the default session affinity timeout of 3 hours.
func TestAffinityDefault(t *testing.T) {
	for name, config := range map[string]*v1.SessionAffinityConfig{"none": nil, "empty": {}, "without a timeout": {ClientIP: &v1.ClientIPConfig{}}} {
		s := webService()
		s.Spec.SessionAffinityConfig = config
		if got := affinitySeconds(s); got != 10800 {
			t.Errorf("configuration %s: %d s", name, got)
		}
	}
	s := webService()
	s.Spec.SessionAffinity = v1.ServiceAffinityNone
	if got := affinitySeconds(s); got != 0 {
		t.Errorf("without affinity: %d s", got)
	}
}

// TestManyWeights checks that an annotation of any size costs little, and two warnings at most.
func TestManyWeights(t *testing.T) {
	var good, bad strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&good, "10.%d.%d.%d=2,", i>>16, i>>8&255, i&255)
		fmt.Fprintf(&bad, "10.0.0.%d=x,", i)
	}
	for text, want := range map[string]int{good.String(): 1, bad.String(): 1, "10.0.0.1=1,10.0.0.1=2": 1, " ": 0, "0/0=1": 1, "::/0=0": 0} {
		s := webService()
		s.Spec.SessionAffinity = v1.ServiceAffinityNone
		s.Annotations = map[string]string{AnnotationWeights: text}
		d := newServiceDef(s, Origin{}, &Options{})
		if len(d.warnings) != want {
			t.Errorf("%.40s: warnings %v, want %d", text, d.warnings, want)
		}
		if w := d.ports[0].weights; w != nil && len(w.of) > 4096 {
			t.Errorf("%.40s: %d entries are kept", text, len(w.of))
		}
	}
}
