package ports

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// listener reads "TCP 0.0.0.0:80", and "TCP [::]:80+4" for one that takes IPv4 as well.
func listener(text string) Listener {
	protocol, addr, _ := strings.Cut(text, " ")
	addr, both := strings.CutSuffix(addr, "+4")
	return Listener{Protocol: k8s.Protocol(protocol), Addr: netip.MustParseAddrPort(addr), Both: both}
}

// port makes a Service port from "default/web:http TCP IPv4" and frontends such as "NodePort 30784" or
// "LoadBalancer 10.0.0.5:80".
func port(name string, frontends ...string) *k8s.ServicePort {
	w := strings.Fields(name)
	service, portName, _ := strings.Cut(w[0], ":")
	ns, n, _ := strings.Cut(service, "/")
	family := k8s.IPv4
	if w[2] == "IPv6" {
		family = k8s.IPv6
	}
	p := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: ns, Name: n}, Port: portName, Protocol: k8s.Protocol(w[1]), Family: family}}
	for _, text := range frontends {
		var f k8s.Frontend
		text, by, _ := strings.Cut(text, " shadowed by ")
		f.ShadowedBy = by
		typ, at, _ := strings.Cut(text, " ")
		f.Type = k8s.FrontendType(typ)
		if a, err := netip.ParseAddrPort(at); err == nil {
			f.Address, f.Port = a.Addr(), a.Port()
		} else if _, err := fmt.Sscan(at, &f.Port); err != nil {
			panic(err)
		}
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

func model(ports ...*k8s.ServicePort) *k8s.Model {
	m := &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}, Node: k8s.Node{
		IPs:   []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Local: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00::1")},
	}}
	for _, p := range ports {
		m.Ports[p.Name] = p
	}
	return m
}

// conflicts returns the frontends of a model that hide a listener, sorted, without processes.
func conflicts(listeners []Listener, model *k8s.Model) []Conflict {
	m := newMatcher(listeners, model.Node)
	for _, p := range model.Ports {
		m.match(p)
	}
	return m.sorted()
}

func TestConflicts(t *testing.T) {
	np4, np6 := port("default/web:http TCP IPv4", "NodePort 30784"), port("default/web:http TCP IPv6", "NodePort 30784")
	for _, c := range []struct {
		name      string
		ports     []*k8s.ServicePort
		listeners string // separated by commas
		want      []string
	}{
		{"NodePort and wildcard", []*k8s.ServicePort{np4}, "TCP 0.0.0.0:30784", []string{"NodePort 30784/TCP of default/web:http at 0.0.0.0:30784"}},
		{"NodePort and one address", []*k8s.ServicePort{np4}, "TCP 192.168.0.1:30784", []string{"NodePort 30784/TCP of default/web:http at 192.168.0.1:30784"}},
		{"loopback is in nobody's way", []*k8s.ServicePort{np4, np6}, "TCP 127.0.0.1:30784,TCP [::1]:30784,TCP 127.1.2.3:30784", nil},
		{"another port, another protocol", []*k8s.ServicePort{np4}, "TCP 0.0.0.0:30785,UDP 0.0.0.0:30784", nil},
		{"IPv6 wildcard that takes IPv4", []*k8s.ServicePort{np4}, "TCP [::]:30784+4", []string{"NodePort 30784/TCP of default/web:http at [::]:30784"}},
		{"IPv6 wildcard that does not", []*k8s.ServicePort{np4}, "TCP [::]:30784", nil},
		{"IPv4 wildcard and IPv6 alone", []*k8s.ServicePort{np6}, "TCP 0.0.0.0:30784", nil},
		{"both families, one line", []*k8s.ServicePort{np4, np6}, "TCP [::]:30784+4", []string{"NodePort 30784/TCP of default/web:http at [::]:30784"}},
		{"several sockets at one address, one line", []*k8s.ServicePort{np4}, "TCP 0.0.0.0:30784,TCP 0.0.0.0:30784", []string{"NodePort 30784/TCP of default/web:http at 0.0.0.0:30784"}},
		{"two listeners", []*k8s.ServicePort{np4}, "TCP 10.0.0.1:30784,TCP 192.168.0.1:30784",
			[]string{"NodePort 30784/TCP of default/web:http at 10.0.0.1:30784", "NodePort 30784/TCP of default/web:http at 192.168.0.1:30784"}},
		{"restricted NodePort", []*k8s.ServicePort{port("default/web TCP IPv4", "NodePort 10.0.0.1:30784")}, "TCP 192.168.0.1:30784", nil},
		{"restricted NodePort and its address", []*k8s.ServicePort{port("default/web TCP IPv4", "NodePort 10.0.0.1:30784")}, "TCP 0.0.0.0:30784",
			[]string{"NodePort 10.0.0.1:30784/TCP of default/web at 0.0.0.0:30784"}},
		{"the node's own address as load balancer's", []*k8s.ServicePort{port("kube-system/traefik:web TCP IPv4", "ClusterIP 10.43.0.5:80", "LoadBalancer 192.168.0.1:80")},
			"TCP 0.0.0.0:80", []string{"LoadBalancer 192.168.0.1:80/TCP of kube-system/traefik:web at 0.0.0.0:80"}},
		{"somebody else's address", []*k8s.ServicePort{port("kube-system/traefik:web TCP IPv4", "LoadBalancer 203.0.113.5:80")}, "TCP 0.0.0.0:80", nil},
		{"bound to a load balancer's address", []*k8s.ServicePort{port("kube-system/traefik:web TCP IPv4", "LoadBalancer 203.0.113.5:80")}, "TCP 203.0.113.5:80",
			[]string{"LoadBalancer 203.0.113.5:80/TCP of kube-system/traefik:web at 203.0.113.5:80"}},
		{"external IP", []*k8s.ServicePort{port("default/dns UDP IPv6", "ExternalIP [fd00::1]:53")}, "UDP [::]:53", []string{"ExternalIP [fd00::1]:53/UDP of default/dns at [::]:53"}},
		{"a cache at a cluster IP", []*k8s.ServicePort{port("kube-system/dns UDP IPv4", "ClusterIP 10.96.0.10:53")}, "UDP 10.96.0.10:53,UDP 0.0.0.0:53", nil},
		{"a frontend that is not in force", []*k8s.ServicePort{port("default/late TCP IPv4", "NodePort 30784 shadowed by default/web")}, "TCP 0.0.0.0:30784", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ls []Listener
			for text := range strings.SplitSeq(c.listeners, ",") {
				ls = append(ls, listener(text))
			}
			var got []string
			for _, k := range conflicts(ls, model(c.ports...)) {
				got = append(got, fmt.Sprintf("%s of %s at %s", k.frontend(), k.Service, k.Listener.Addr))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestConflictString(t *testing.T) {
	c := Conflict{Service: port("default/guestbook TCP IPv4").Name, Type: k8s.NodePort, Port: 30784, Listener: listener("TCP 0.0.0.0:30784")}
	want := "NodePort 30784/TCP of default/guestbook is also listened on by a process that cannot be seen from here at 0.0.0.0:30784: clients reach the Service, not the process"
	if c.String() != want {
		t.Errorf("%s\nwant %s", c, want)
	}
	c.Process = Process{123, "nginx"}
	want = "NodePort 30784/TCP of default/guestbook is also listened on by nginx (pid 123) at 0.0.0.0:30784: clients reach the Service, not the process"
	if c.String() != want {
		t.Errorf("%s\nwant %s", c, want)
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
