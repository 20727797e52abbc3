//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// podPort is where servers of this test listen in pods, hostPort where one listens on the node and nodePortPort where one
// listens on a NodePort of the node.
const (
	podPort      = 9000
	hostPort     = 9001
	nodePortPort = 30900
)

// survivalTime is how long the switch has to live: 30 s are the timeout of most conntrack entries, and up to 20 s more pass
// before Open vSwitch 3.1.0 deletes an expired one (lib/conntrack.c, conntrack_clean).
func survivalTime() time.Duration {
	if os.Getenv("NKP_FAULTS_LONG") != "" {
		return 10 * time.Minute
	}
	return 55 * time.Second
}

// Open vSwitch releases that lack [ovsdb.NullNAT] end by an assertion (lib/conntrack.c, conn_update_state) when
// a packet meets an expired conntrack entry whose translation changes nothing. With nkp's defaults no packet makes such an
// entry: the same ovs-vswitchd serves all the time. Each client below makes them in its own way as soon as the pipeline lets it.
func TestSwitchSurvives(t *testing.T) {
	c := newCluster(t)
	c.straight = true
	local, remote := c.servers[0], c.servers[3]
	for _, h := range []*testbed.Host{local.Host, remote.Host, c.Node} {
		for _, port := range []int{podPort, hostPort, nodePortPort} {
			listen(t, h, port)
		}
	}
	_, err := remote.ServeSCTP(podPort)
	must(t, err)

	must(t, harness.WriteManifests(c.manifest, c.survivalObjects(local, remote)))
	must(t, c.start())
	must(t, c.settle())
	pid := c.VswitchdPID()

	node4, node6 := testbed.NodeIP4, testbed.NodeIP6
	client, other := c.clients[0].Host, c.clients[1].Host
	direct4, direct6 := addr(local.IP4, podPort), addr(local.IP6, podPort)
	visitors := []*visitor{
		{name: "a pod, directly to an endpoint", host: client, proto: "tcp", to: []string{direct4}, port: 20001},
		{name: "a pod, directly to an endpoint, IPv6", host: client, proto: "tcp", to: []string{direct6}, port: 20002},
		{name: "a pod, directly, closed by a reset", host: client, proto: "tcp", to: []string{direct4}, port: 20003, reset: true},
		{name: "a pod, through a Service and directly", host: client, proto: "tcp", to: []string{"40.0.0.1:80", direct4}, port: 20004, mayFail: true},
		{name: "a pod, directly and through a Service", host: client, proto: "tcp", to: []string{direct4, "40.0.0.1:80"}, port: 20005, mayFail: true},
		{name: "the node, from a low port to another node's pod", host: c.Node, proto: "tcp", to: []string{"40.0.0.2:80"}, port: 20006},
		{name: "the node, the same with IPv6", host: c.Node, proto: "tcp", to: []string{"[fd00:40::2]:80"}, port: 20007},
		{name: "the node, SCTP", host: c.Node, proto: "sctp", to: []string{addr(netip.MustParseAddr("40.0.0.3"), podPort)}},
		{name: "a pod, to an external IP that is the endpoint", host: client, proto: "tcp", to: []string{addr(node4, hostPort)}, port: 20008},
		{name: "a pod, the same with IPv6", host: client, proto: "tcp", to: []string{addr(node6, hostPort)}, port: 20009},
		{name: "from outside, to an external IP that is the endpoint", host: c.External, proto: "tcp", to: []string{addr(node4, hostPort)}, port: 20010},
		{name: "from outside, to a NodePort that is the endpoint", host: c.External, proto: "tcp", to: []string{addr(node4, nodePortPort)}, port: 20011},
		{name: "a pod, to an external IP that is a pod", host: other, proto: "tcp", to: []string{addr(c.servers[1].IP4, podPort)}, port: 20012},
	}
	// A datagram from the same port after the entry of the one before has expired, and before it is deleted.
	for i := range 6 {
		late := time.Duration(31+3*i) * time.Second
		visitors = append(visitors,
			&visitor{name: fmt.Sprintf("a pod, datagrams %v apart", late), host: client, proto: "udp", to: []string{direct4}, port: 21000 + i, every: late},
			&visitor{name: fmt.Sprintf("the node, datagrams %v apart", late), host: c.Node, proto: "udp", to: []string{"40.0.0.2:80"}, port: 21100 + i, every: late},
			&visitor{name: fmt.Sprintf("from outside, datagrams %v apart", late), host: c.External, proto: "udp", to: []string{addr(node4, hostPort)}, port: 21200 + i, every: late})
	}
	listen(t, c.servers[1].Host, podPort)

	ctx, cancel := context.WithTimeout(context.Background(), survivalTime())
	defer cancel()
	done := make(chan struct{})
	for _, v := range visitors {
		go func() { v.visit(ctx); done <- struct{}{} }()
	}
	for range visitors {
		<-done
	}
	if _, err := c.Appctl("version"); err != nil || c.VswitchdPID() != pid || !c.VswitchdRuns() {
		t.Fatalf("ovs-vswitchd has ended: %v", err)
	}
	for _, v := range visitors {
		t.Logf("%-60s %d answered, %d not", v.name, v.answered.Load(), v.failed.Load())
		if v.answered.Load() == 0 || !v.mayFail && v.failed.Load() > 0 {
			t.Errorf("%s: %d answered, %d not: %v", v.name, v.answered.Load(), v.failed.Load(), v.last.Load())
		}
	}
}

// visitor asks the same addresses in turn, from one port.
type visitor struct {
	name    string
	host    *testbed.Host
	proto   string
	to      []string
	port    int // 0: any
	reset   bool
	mayFail bool          // see pipeline/README.md, "Known limits": port-reuse guards
	every   time.Duration // 0: as soon as one is answered

	answered, failed atomic.Int64
	last             atomic.Value // error
}

func (v *visitor) visit(ctx context.Context) {
	for i := 0; ; i++ {
		o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: v.port, Reset: v.reset}}
		if _, err := v.host.AskWith(ctx, v.proto, v.to[i%len(v.to)], o); err == nil {
			v.answered.Add(1)
		} else if ctx.Err() == nil {
			v.failed.Add(1)
			v.last.Store(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(v.every, 50*time.Millisecond)):
		}
	}
}

func addr(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }

func listen(t *testing.T, h *testbed.Host, port int) {
	t.Helper()
	_, err := h.ServeTCP(port)
	_, err2 := h.ServeUDP(port)
	must(t, errors.Join(err, err2))
}

// survivalObjects are Services that have endpoints at their own addresses, and others.
func (c *cluster) survivalObjects(local, remote *testbed.Pod) []any {
	objects := []any{harness.Node()}
	add := func(name, clusterIP string, port uint16, protocol v1.Protocol, target uint16, endpoint netip.Addr, change func(*v1.Service)) {
		s := (&svc{name: name, vip: netip.MustParseAddr(clusterIP)}).service()
		s.Spec.Ports[0].Port, s.Spec.Ports[0].Protocol = int32(port), protocol
		if change != nil {
			change(s)
		}
		sl := (&svc{name: name, vip: netip.MustParseAddr(clusterIP)}).slice()
		node, ready, number := harness.OtherNode, true, int32(target)
		if endpoint != remote.IP4 && endpoint != remote.IP6 {
			node = nodeName
		}
		sl.Ports[0].Port, sl.Ports[0].Protocol = &number, &protocol
		sl.Endpoints = []discoveryv1.Endpoint{{
			Addresses: []string{endpoint.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}}
		objects = append(objects, s, sl)
	}
	external := func(ip netip.Addr) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.ExternalIPs = []string{ip.String()} }
	}
	node4, node6, tcp, udp := testbed.NodeIP4, testbed.NodeIP6, v1.ProtocolTCP, v1.ProtocolUDP
	add("plain", "40.0.0.1", 80, tcp, podPort, local.IP4, nil)
	add("plain6", "fd00:40::1", 80, tcp, podPort, local.IP6, nil)
	add("plain-udp", "40.0.0.1", 80, udp, podPort, local.IP4, nil)
	add("remote", "40.0.0.2", 80, tcp, podPort, remote.IP4, nil)
	add("remote6", "fd00:40::2", 80, tcp, podPort, remote.IP6, nil)
	add("remote-udp", "40.0.0.2", 80, udp, podPort, remote.IP4, nil)
	add("remote-sctp", "40.0.0.3", podPort, v1.ProtocolSCTP, podPort, remote.IP4, nil)
	add("own", "40.0.0.4", hostPort, tcp, hostPort, node4, external(node4))
	add("own6", "fd00:40::4", hostPort, tcp, hostPort, node6, external(node6))
	add("own-udp", "40.0.0.4", hostPort, udp, hostPort, node4, external(node4))
	add("pod", "40.0.0.5", podPort, tcp, podPort, c.servers[1].IP4, external(c.servers[1].IP4))
	add("node-port", "40.0.0.6", 80, tcp, nodePortPort, node4, func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, nodePortPort
	})
	return objects
}
