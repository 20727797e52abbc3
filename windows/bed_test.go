package windows

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// The node of the tests: one of two on an overlay network.
const (
	nodeName  = "winw1"
	nodeIP    = "10.20.30.11"
	otherNode = "10.20.30.12"
	hostMAC1  = "08:00:27:09:de:92"
	sourceVIP = "100.244.206.66"
)

var (
	newest = hns.Version{Major: 15, Minor: 5}
	routes = map[string]string{"100.244.1.0/24": otherNode, "100.244.2.0/24": "10.20.30.13"}
)

// bed is a node: a fake HNS, API objects, and a Plane that is driven by hand.
type bed struct {
	t       *testing.T
	hns     *hnsfake.Server
	network string
	tracker *k8s.Tracker
	opts    Options
	plane   *Plane
	clock   time.Time
	log     bytes.Buffer
}

// newBed returns a node with a network of a type and a Plane.
func newBed(t *testing.T, networkType string, v hns.Version, change ...func(*Options)) *bed {
	t.Helper()
	b := &bed{t: t, hns: hnsfake.New(v), clock: time.Unix(1700000000, 0)}
	var r map[string]string
	if networkType == hns.NetworkOverlay {
		r = routes
	}
	b.network = b.hns.AddNetwork("Calico", networkType, r)
	b.tracker = k8s.NewTracker(k8s.Options{NodeName: nodeName})
	b.tracker.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: nodeIP}}}}, k8s.Origin{})
	b.opts = Options{
		NetworkName: "Calico", HostMAC: hostMAC1, StateFile: filepath.Join(t.TempDir(), "hns.json"),
		Log: slog.New(slog.NewTextHandler(&b.log, nil)), Open: func() (hns.Host, error) { return b.hns.Host(), nil },
		now:        func() time.Time { return b.clock },
		portBlocks: func(context.Context) (PortBlocks, error) { return PortBlocks{256, 256}, nil },
	}
	if networkType == hns.NetworkOverlay {
		b.opts.SourceVIP = netip.MustParseAddr(sourceVIP)
		b.hns.AddPod(b.network, "", "Calico_ep", "00-15-5d-00-00-01", sourceVIP)
	}
	for _, c := range change {
		c(&b.opts)
	}
	b.restart()
	return b
}

// restart gives the node a new agent, as after a crash or an upgrade.
func (b *bed) restart() {
	b.t.Helper()
	p, err := New(b.opts)
	must(b.t, err)
	b.plane = p
	full := &k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}, HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{}, Node: true}
	model, _ := b.tracker.Flush()
	for n, sp := range model.Ports {
		full.Ports[n] = sp
	}
	for n, c := range model.HealthChecks {
		full.HealthChecks[n] = &c
	}
	p.Update(model, *full)
}

// flush gives the Plane what has changed.
func (b *bed) flush() {
	model, changes := b.tracker.Flush()
	b.plane.Update(model, changes)
}

// sync returns the Plane what has changed and has it sync once; it gives the calls that made.
func (b *bed) sync() []hnsfake.Call {
	b.t.Helper()
	b.flush()
	b.hns.Calls()
	b.round()
	return b.hns.Calls()
}

// round has the Plane sync, without the pause between two syncs, and returns when the next one is due.
func (b *bed) round() time.Time {
	b.plane.runner.NotUntil = time.Time{}
	s := &steps{Plane: b.plane}
	b.plane.runner.Round(context.Background(), s)
	return s.next
}

// good has the Plane sync and expects no failure.
func (b *bed) good() []hnsfake.Call {
	b.t.Helper()
	calls := b.sync()
	if s := b.plane.Detail(); s.Error != "" || len(s.Failures) > 0 {
		b.t.Fatalf("sync failed: %q %+v", s.Error, s.Failures)
	}
	b.sane()
	return calls
}

// ownClock gives the Plane the clock of the process. In a bubble of synctest that is the bubble's.
func ownClock(o *Options) { o.now = time.Now }

// run has the Plane run by itself, in a bubble of synctest, until stop is called.
func (b *bed) run() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.plane.Run(ctx) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
}

// settle has the time pass that Run keeps between two syncs, and waits until Run has nothing more to do at once.
func settle() {
	time.Sleep(defaultMinSync)
	synctest.Wait()
}

// sane checks what must hold after every sync.
func (b *bed) sane() {
	b.t.Helper()
	if n := b.hns.Dangling(); n > 0 {
		b.t.Fatalf("%d endpoints were deleted while a load balancer referred to them", n)
	}
}

// expire makes every failed step due again.
func (b *bed) expire() { b.clock = b.clock.Add(2 * time.Minute) }

// pod makes a pod's endpoint in HNS.
func (b *bed) pod(addrs ...string) string {
	return b.hns.AddPod(b.network, "", "pod-"+addrs[0], "0E-2A-64-f4-00-01", addrs...)
}

// count returns the number of load balancers.
func (b *bed) count() int { return len(b.hns.LoadBalancers()) }

// loadBalancer returns the load balancer of a frontend; "" is a NodePort's VIP.
func (b *bed) loadBalancer(vip string, port uint16) *hns.LoadBalancer {
	for _, l := range b.hns.LoadBalancers() {
		for _, m := range l.PortMappings {
			if m.ExternalPort == port && (vip == "" && len(l.FrontendVIPs) == 0 || slices.Contains(l.FrontendVIPs, vip)) {
				return &l
			}
		}
	}
	return nil
}

// mustHave returns the load balancer of a frontend with the addresses of its endpoints.
func (b *bed) mustHave(vip string, port uint16, endpoints ...string) *hns.LoadBalancer {
	b.t.Helper()
	l := b.loadBalancer(vip, port)
	if l == nil {
		b.t.Fatalf("no load balancer for %s:%d; HNS has\n%s", vip, port, b.hns.Dump())
	}
	addr := map[string]string{}
	for _, e := range b.hns.Endpoints() {
		for _, c := range e.IpConfigurations {
			addr[e.ID] = c.IpAddress
		}
	}
	got := []string{}
	for _, id := range l.HostComputeEndpoints {
		got = append(got, addr[id])
	}
	slices.Sort(got)
	slices.Sort(endpoints)
	if !slices.Equal(got, endpoints) {
		b.t.Fatalf("%s:%d leads to %v, want %v", vip, port, got, endpoints)
	}
	return l
}

// service adds or replaces a Service.
func (b *bed) service(name string, spec v1.ServiceSpec, change ...func(*v1.Service)) {
	b.t.Helper()
	for i := range spec.Ports {
		if spec.Ports[i].Protocol == "" {
			spec.Ports[i].Protocol = v1.ProtocolTCP
		}
	}
	if spec.ClusterIPs == nil && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.IPFamilies == nil {
		for _, ip := range spec.ClusterIPs {
			f := v1.IPv4Protocol
			if netip.MustParseAddr(ip).Is6() {
				f = v1.IPv6Protocol
			}
			spec.IPFamilies = append(spec.IPFamilies, f)
		}
	}
	if spec.Type == "" {
		spec.Type = v1.ServiceTypeClusterIP
	}
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec}
	for _, c := range change {
		c(s)
	}
	b.tracker.SetService(s, k8s.Origin{})
}

// simple adds a ClusterIP Service on TCP 80 with endpoints on 8080.
func (b *bed) simple(name, clusterIP string, endpoints ...string) {
	b.t.Helper()
	b.service(name, v1.ServiceSpec{ClusterIP: clusterIP, Ports: tcp(80, 8080)})
	b.slice(name, tcp(0, 8080), endpoints...)
}

func tcp(port, target int32) []v1.ServicePort {
	return []v1.ServicePort{{Port: port, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromInt32(target)}}
}

// slice adds or replaces the EndpointSlice of a Service for one family. An endpoint is "address" on the other node, "address@node", or with
// "!" at the end not ready; ports' targetPort is what they listen on.
func (b *bed) slice(name string, ports []v1.ServicePort, endpoints ...string) {
	b.t.Helper()
	o := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range ports {
		p := &ports[i]
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.TargetPort.IntVal})
	}
	for _, text := range endpoints {
		ready, node := true, "winw2"
		if n := len(text) - 1; text[n] == '!' {
			ready, text = false, text[:n]
		}
		if addr, at, ok := strings.Cut(text, "@"); ok {
			text, node = addr, at
		}
		if netip.MustParseAddr(text).Is6() {
			o.AddressType, o.Name = discoveryv1.AddressTypeIPv6, name+"-6"
		}
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{text}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	b.tracker.SetEndpointSlice(o, k8s.Origin{})
}

// many adds n Services with k endpoints each, all on other nodes.
func (b *bed) many(n, k int) {
	b.t.Helper()
	for i := range n {
		var eps []string
		for j := range k {
			eps = append(eps, fmt.Sprintf("100.244.%d.%d", 1+(i*k+j)/250%2+2*((i*k+j)/500), 1+(i*k+j)%250))
		}
		b.simple(fmt.Sprintf("web-%03d", i), fmt.Sprintf("10.99.%d.%d", i/250, 1+i%250), eps...)
	}
}

// addresses returns the addresses of all endpoints.
func (b *bed) addresses() (addrs []string) {
	for _, e := range b.hns.Endpoints() {
		addrs = append(addrs, e.IpConfigurations[0].IpAddress)
	}
	return addrs
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
