package k8s

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A proxy with a name of its own shares the Service ranges with others: an address that none of its Services has is theirs,
// so that the ranges are unknown to it, wherever they come from.
func TestServiceRangesAreSharedWithOtherProxies(t *testing.T) {
	given := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	for _, x := range []struct {
		opts Options
		want []netip.Prefix
	}{
		{Options{}, []netip.Prefix{netip.MustParsePrefix("10.32.0.0/16")}},
		{Options{ServiceCIDRs: given}, given},
		{Options{ServiceProxyName: "mine"}, nil},
		{Options{ServiceProxyName: "mine", ServiceCIDRs: given}, nil},
	} {
		tr := NewTracker(x.opts)
		tr.SetServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.32.0.0/16"}}}, Origin{})
		if m, _ := tr.Flush(); !slices.Equal(m.ServiceCIDRs, x.want) {
			t.Errorf("%+v: ranges %v, want %v", x.opts, m.ServiceCIDRs, x.want)
		}
	}
}

// The ranges lose the addresses of skipped Services and no others.
func TestRangesWithoutAddresses(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/28"), netip.MustParsePrefix("fd00::f0/124")}
	for _, but := range []string{"", "10.96.0.0", "10.96.0.15", "fd00::f7", "10.96.0.3 10.96.0.10 10.96.0.3", "10.97.0.1 fd01::1"} {
		var out []netip.Addr
		for text := range strings.FieldsSeq(but) {
			out = append(out, netip.MustParseAddr(text))
		}
		rest := without(ranges, out)
		for _, r := range ranges {
			for a := r.Addr(); r.Contains(a); a = a.Next() {
				in := 0
				for _, p := range rest {
					if p != p.Masked() {
						t.Errorf("without %q: %v has bits beyond its length", but, p)
					}
					if p.Contains(a) {
						in++
					}
				}
				want := 1
				if slices.Contains(out, a) {
					want = 0
				}
				if in != want {
					t.Errorf("without %q: %d prefixes of %v hold %v", but, in, rest, a)
				}
			}
		}
	}
}

func TestParseServiceName(t *testing.T) {
	if n, err := ParseServiceName("kube-system/kube-dns"); err != nil || n != (ServiceName{"kube-system", "kube-dns"}) {
		t.Errorf("%v, %v", n, err)
	}
	for _, text := range []string{"", "kube-dns", "/kube-dns", "kube-system/", "a/b/c", "kube_system/kube-dns", "a/B"} {
		if n, err := ParseServiceName(text); err == nil || !strings.Contains(err.Error(), "is not NAMESPACE/NAME of a Service") {
			t.Errorf("%q: %v, %v", text, n, err)
		}
	}
}

// targetPort reports what the slices should have only where Kubernetes writes them: with a selector, and as a number.
func TestTargetPort(t *testing.T) {
	pods := map[string]string{"app": "web"}
	for _, x := range []struct {
		name     string
		selector map[string]string
		target   intstr.IntOrString
		want     uint16
	}{
		{"number", pods, intstr.FromInt32(8080), 8080},
		{"name", pods, intstr.FromString("http"), 0},
		{"not set", pods, intstr.IntOrString{}, 0},
		{"no selector", nil, intstr.FromInt32(8080), 0},
		{"out of range", pods, intstr.FromInt32(70000), 0},
	} {
		tr := NewTracker(Options{})
		tr.SetService(&v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: x.selector, Ports: []v1.ServicePort{{Name: "http", Port: 80, TargetPort: x.target}}},
		}, Origin{})
		tr.Flush()
		if got := tr.TargetPort(PortName{ServiceName{"default", "web"}, "http", "TCP", IPv4}); got != x.want {
			t.Errorf("%s: %d, want %d", x.name, got, x.want)
		}
	}
}

// A Service port's own addresses that are not served are listed, in its family alone.
func TestNotServedOf(t *testing.T) {
	proxy := v1.LoadBalancerIPModeProxy
	tr := NewTracker(Options{IgnoreExternalIPs: true})
	tr.SetService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1", Type: v1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.1", "2001:db8::1"},
			Ports: []v1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}},
		Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: "192.0.2.9", IPMode: &proxy}, {IP: "192.0.2.8"}}}},
	}, Origin{})
	tr.Flush()
	var got []string
	for _, u := range tr.NotServedOf(PortName{ServiceName{"default", "web"}, "https", "TCP", IPv4}) {
		got = append(got, string(u.Type)+" "+u.Addr.String())
	}
	if want := []string{"ExternalIP 192.0.2.1:443", "LoadBalancer 192.0.2.9:443"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := tr.NotServedOf(PortName{ServiceName{"default", "none"}, "", "TCP", IPv4}); got != nil {
		t.Errorf("a Service that does not exist: %v", got)
	}
}
