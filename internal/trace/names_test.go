package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// namesModel has a Service with two ports and both families, one of UDP, and one without a name for its port.
func namesModel() *k8s.Model {
	m := &k8s.Model{Node: k8s.Node{Name: "n1"}, Ports: map[k8s.PortName]*k8s.ServicePort{}}
	add := func(service, port string, protocol k8s.Protocol, at string) {
		a := netip.MustParseAddrPort(at)
		n := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: service}, Port: port, Protocol: protocol, Family: k8s.FamilyOf(a.Addr())}
		m.Ports[n] = &k8s.ServicePort{Name: n, Frontends: []k8s.Frontend{{Type: k8s.NodePort, Port: 30000}, {Type: k8s.ClusterIP, Address: a.Addr(), Port: a.Port()}}}
	}
	add("web", "http", "TCP", "10.96.0.1:80")
	add("web", "http", "TCP", "[fd00::1]:80")
	add("web", "https", "TCP", "10.96.0.1:443")
	add("dns", "dns", "UDP", "10.96.0.2:53")
	add("dns", "dns-tcp", "TCP", "10.96.0.2:53")
	add("single", "", "TCP", "10.96.0.3:8080")
	return m
}

func TestResolve(t *testing.T) {
	for _, c := range []struct{ from, to, protocol, pod, want string }{
		{"10.0.0.1", "svc/default/web:http", "", "", "TCP from 10.0.0.1 to 10.96.0.1:80"},
		{"10.0.0.1:9", "default/web:443", "", "", "TCP from 10.0.0.1:9 to 10.96.0.1:443"},
		{"fd00::9", "service/default/web:80", "", "", "TCP from fd00::9 to [fd00::1]:80"},
		{"pod/default/a", "svc/default/web:http", "", "fd00::9 10.0.0.1", "TCP from fd00::9 to [fd00::1]:80"},
		{"pod/default/a:7", "svc/default/web:https", "", "fd00::9 10.0.0.1", "TCP from 10.0.0.1:7 to 10.96.0.1:443"},
		{"pod/default/a", "10.96.0.1:81", "", "fd00::9 10.0.0.1", "TCP from 10.0.0.1 to 10.96.0.1:81"},
		{"10.0.0.1", "svc/default/dns:dns", "", "", "UDP from 10.0.0.1 to 10.96.0.2:53"},
		{"10.0.0.1", "svc/default/dns:53", "", "", "TCP from 10.0.0.1 to 10.96.0.2:53"},
		{"10.0.0.1", "svc/default/dns:53", "udp", "", "UDP from 10.0.0.1 to 10.96.0.2:53"},
		{"10.0.0.1", "svc/default/single", "", "", "TCP from 10.0.0.1 to 10.96.0.3:8080"},

		{"10.0.0.1", "svc/default/wbe:http", "", "", "no Service default/wbe is served on node n1; did you mean default/web?"},
		{"10.0.0.1", "svc/default/guestbook:80", "", "", "no Service default/guestbook is served on node n1"},
		{"10.0.0.1", "svc/default/web:81", "", "", "the Service default/web has no port 81, only 443/TCP (https), 80/TCP (http)"},
		{"10.0.0.1", "svc/default/dns:dns", "tcp", "", "the Service default/dns has no port dns/TCP, only 53/TCP (dns-tcp), 53/UDP (dns)"},
		{"10.0.0.1", "svc/default/web", "", "", "the Service default/web has several ports, 443/TCP (https), 80/TCP (http): name one, such as svc/default/web:http"},
		{"fd00::9", "svc/default/single:8080", "", "", "the Service default/single has no IPv6 cluster IP in force, which the client fd00::9 needs"},
		{"pod/default/a", "svc/default/web:80", "", "", "pod default/a has no address"},
		{"pod/default/a", "[fd00::1]:80", "", "10.0.0.1", "no packet goes from 10.0.0.1 to fd00::1: one is IPv4, the other IPv6"},

		{"pod/a", "10.96.0.1:80", "", "", `--from: "a" is not NAMESPACE/NAME or NAMESPACE/NAME:PORT`},
		{"pod/default/a:x", "10.96.0.1:80", "", "", `--from: "pod/default/a:x": the source's port is a number from 1 to 65535`},
		{"10.0.0.1", "svc/web:80", "", "", `--to: "web:80" is not NAMESPACE/NAME or NAMESPACE/NAME:PORT`},
		{"10.0.0.1", "svc/default/web:", "", "", `--to: "default/web:" is not NAMESPACE/NAME or NAMESPACE/NAME:PORT`},
		{"10.0.0.1", "svc/default/web:80", "icmp", "", `--protocol: "icmp" is not tcp, udp or sctp`},
	} {
		r := Request{From: c.from, To: c.to, Protocol: c.protocol}
		got := ""
		if e, err := r.Parse("--"); err != nil {
			got = err.Error()
		} else {
			var pod []netip.Addr
			for _, ip := range strings.Fields(c.pod) {
				pod = append(pod, netip.MustParseAddr(ip))
			}
			if q, steps, err := e.Resolve(namesModel(), pod); err != nil {
				got = err.Error()
			} else if got = q.String(); (len(steps) > 0) != strings.Contains(c.from+c.to, "/") {
				t.Errorf("%s to %s: steps %q", c.from, c.to, steps)
			}
		}
		if got != c.want {
			t.Errorf("%s to %s: got  %s\nwant %s", c.from, c.to, got, c.want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	for name, want := range map[string]string{"wbe": "; did you mean b/web?", "nothing": "", "book": "; did you mean a/bookstore, a/guestbook?"} {
		if got := DidYouMean(name, []string{"b/web", "a/guestbook", "b/web", "a/bookstore"}); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var many []string
	for i := range 9 {
		many = append(many, fmt.Sprintf("a/web-%d", i))
	}
	if got := DidYouMean("web", many); strings.Count(got, "/") != maxSuggestions {
		t.Errorf("%q", got)
	}
}
