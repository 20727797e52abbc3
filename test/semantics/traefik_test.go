//go:build linux

package semantics

import (
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The cluster of K3s' decision record on svclb: on the node k3s-1, where a svclb pod holds port 80 by its hostPort,
// traefik runs on k3s-2, and its load balancer's addresses are those of both nodes.
const traefikManifest = "../../k8s/testdata/cases/k3s-traefik.yaml"

var (
	k3s1 = dual{netip.MustParseAddr("10.1.1.13"), netip.MustParseAddr("fd56:5da5:a285:eea0::6")}
	k3s2 = dual{netip.MustParseAddr("10.1.1.16"), netip.MustParseAddr("fd56:5da5:a285:eea0::8")}
	// traefikPod6 is the pod's IPv6 address; its IPv4 one is the bed's.
	traefikPod6 = netip.MustParseAddr("fd42:0:0:1::5")
)

// loadTraefik is loadK3s with a process of this node in the place of svclb, too. It answers what the proxy leaves alone.
func (c *cluster) loadTraefik() {
	c.t.Helper()
	c.loadK3s()
	c.listen(c.Node, 80)
	c.listen(c.Node, 443)
}

// loadK3s builds the cluster of the manifest: its objects, its pods, and what else listens on its nodes. On the other node
// processes answer in the place of svclb.
func (c *cluster) loadK3s() {
	c.t.Helper()
	data, err := os.ReadFile(traefikManifest)
	must(c.t, err)
	var list struct{ Items []map[string]any }
	must(c.t, yaml.Unmarshal(data, &list))
	for i, item := range list.Items {
		c.objects[nth("of the manifest", i)] = []any{item}
	}
	c.node, c.nodeName = nil, "k3s-1"

	here, err := c.AddPods(testbed.PodSpec{Name: "kube-dns", Number: 4}, testbed.PodSpec{Name: "metrics-server", Number: 3})
	must(c.t, err)
	away, err := c.AddRemotePods(testbed.PodSpec{Name: "traefik", Number: 5})
	must(c.t, err)
	traefik := away[0]
	c.named = map[string]*testbed.Host{"kube-dns": here[0].Host, "metrics-server": here[1].Host, "traefik": traefik.Host}
	for host, ports := range map[*testbed.Host][]int{
		here[0].Host: {53, 9153}, here[1].Host: {10250}, traefik.Host: {8000, 8443},
		c.Node: {6443}, c.Remote: {80, 443},
	} {
		for _, p := range ports {
			c.listen(host, p)
		}
	}
	// The bed's IPv6 addresses are its own; these are the manifest's.
	c.addNodeAddress(c.NodeDevice(), dual{v6: k3s1.v6})
	node2, pod := netip.PrefixFrom(k3s2.v6, 128), netip.PrefixFrom(traefikPod6, 128)
	for _, err := range []error{
		c.Remote.AddAddr("eth0", node2),
		c.Router.AddRoute(node2, testbed.RemoteIP6, "remote"),
		traefik.AddAddr("eth0", pod),
		c.Remote.AddRoute(pod, netip.Addr{}, traefik.Interface),
		c.Router.AddRoute(pod, testbed.RemoteIP6, "remote"),
	} {
		must(c.t, err)
	}
}

// traefikIP are the cluster IPs of the Service traefik.
var traefikIP = dual{netip.MustParseAddr("10.43.206.216"), netip.MustParseAddr("fd43::ced8")}

// addSvclb adds the pod of the DaemonSet svclb-traefik on this node. The node passes on to it what comes to its hostPort 80, and
// the pod to the cluster IP. seen counts the pod's connections.
func (c *cluster) addSvclb() (seen *atomic.Int64) {
	c.t.Helper()
	pods, err := c.AddPods(testbed.PodSpec{Name: "svclb-traefik", Number: 6})
	must(c.t, err)
	c.relay(c.Node, 80, of(pods[0].Host))
	return c.relay(pods[0].Host, 80, traefikIP)
}

// relay has a host pass connections to a port on to the same port of another address, and counts them.
func (c *cluster) relay(h *testbed.Host, port uint16, to dual) (passed *atomic.Int64) {
	c.t.Helper()
	l, err := h.Listen(":" + strconv.Itoa(int(port)))
	must(c.t, err)
	c.t.Cleanup(func() { _ = l.Close() })
	passed = &atomic.Int64{}
	pass := func(client net.Conn) {
		defer client.Close()
		passed.Add(1)
		target := to.v6
		if client.LocalAddr().(*net.TCPAddr).IP.To4() != nil {
			target = to.v4
		}
		server, err := h.DialTCP(c.ctx, netip.AddrPortFrom(target, port).String(), testbed.DialOptions{})
		if err != nil {
			return
		}
		defer server.Close()
		go func() { _, _ = io.Copy(server, client); _ = server.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(client, server)
	}
	go func() { // ended by Close
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go pass(client)
		}
	}()
	return passed
}

// traefik is the Service of the manifest with one change.
func (c *cluster) traefik(change func(*v1.Service)) {
	c.t.Helper()
	for _, list := range c.objects {
		item, ok := list[0].(map[string]any)
		if !ok || item["kind"] != "Service" || item["metadata"].(map[string]any)["name"] != "traefik" {
			continue
		}
		text, err := json.Marshal(item)
		must(c.t, err)
		s := &v1.Service{}
		must(c.t, json.Unmarshal(text, s))
		change(s)
		list[0] = s
		return
	}
	c.t.Fatal("there is no Service traefik in " + traefikManifest)
}

// LoadBalancer Services as K3s has them: addresses with ipMode VIP are answered by nkp on whichever node packets meet
// it, so that svclb's pod never sees them; with ipMode Proxy packets go on to who holds the port; with
// externalTrafficPolicy Local a node without endpoints does not answer, while svclb would have.
func TestK3sTraefik(t *testing.T) {
	usual := setup{
		flags: []string{"--cluster-cidr", "10.42.0.0/16,fd00:a::/31"},
		ipv4: testbed.Addressing{
			Node: k3s1.v4, Remote: k3s2.v4,
			Pods: netip.MustParsePrefix("10.42.0.0/24"), RemotePods: netip.MustParsePrefix("10.42.1.0/24"),
		},
		before: (*cluster).loadTraefik,
	}
	with := func(change func(*v1.Service)) setup {
		s := usual
		s.before = func(c *cluster) {
			c.loadTraefik()
			c.traefik(change)
		}
		return s
	}
	nodePorts := []uint16{30235, 32373}

	t.Run("as in the manifest", func(t *testing.T) {
		onEveryPlaneWith(t, usual, func(t *testing.T, c *cluster) {
			traefik := by(c.named["traefik"])
			var probes []probe
			for i, port := range []uint16{80, 443} {
				own := by(c.Node)
				probes = append(probes,
					probe{name: "from outside to this node's address", from: c.External, to: k3s1.on(port), want: traefik},
					probe{name: "from a pod to this node's address", from: c.pod, to: k3s1.on(port), want: traefik},
					probe{name: "from a pod to the other node's address", from: c.pod, to: k3s2.on(port), want: traefik},
					probe{name: "from the node to the other node's address", from: c.Node, to: k3s2.on(port), want: traefik},
					probe{name: "from the node to its own address", from: c.Node, to: k3s1.on(port), want: traefik, needs: ownAddresses, without: &own},
					probe{name: "from a pod to the ClusterIP", from: c.pod, to: traefikIP.on(port), want: traefik},
					probe{name: "from outside to the NodePort", from: c.External, to: k3s1.on(nodePorts[i]), want: traefik})
			}
			only := func(a string) dual { return dual{v4: netip.MustParseAddr(a)} }
			c.expect(t, append(probes,
				probe{name: "the API server", from: c.pod, to: only("10.43.0.1").on(443), want: by(c.Node)},
				probe{name: "DNS", from: c.pod, proto: "udp", to: only("10.43.0.10").on(53), want: by(c.named["kube-dns"])},
				probe{name: "DNS over TCP", from: c.pod, to: only("10.43.0.10").on(53), want: by(c.named["kube-dns"])},
				probe{name: "DNS's metrics", from: c.pod, to: only("10.43.0.10").on(9153), want: by(c.named["kube-dns"])},
				probe{name: "metrics-server", from: c.pod, to: only("10.43.55.117").on(443), want: by(c.named["metrics-server"])},
			)...)
		})
	})
	t.Run("ipMode Proxy", func(t *testing.T) {
		proxy := func(s *v1.Service) {
			mode := v1.LoadBalancerIPModeProxy
			for i := range s.Status.LoadBalancer.Ingress {
				s.Status.LoadBalancer.Ingress[i].IPMode = &mode
			}
		}
		onEveryPlaneWith(t, with(proxy), func(t *testing.T, c *cluster) {
			c.expect(t,
				probe{name: "from outside, svclb of this node answers", from: c.External, to: k3s1.on(80), want: by(c.Node).keep()},
				probe{name: "from a pod, svclb of this node answers", from: c.pod, to: k3s1.on(443), want: by(c.Node).keep()},
				probe{name: "from a pod, svclb of the other node answers", from: c.pod, to: k3s2.on(80), want: by(c.Remote).keep()},
				probe{name: "from the node, svclb of the other node answers", from: c.Node, to: v4(k3s2.on(443)), want: by(c.Remote).keep()},
				probe{name: "the NodePort works", from: c.External, to: k3s1.on(nodePorts[0]), want: by(c.named["traefik"])},
			)
		})
	})
	t.Run("load balancer addresses left alone", func(t *testing.T) {
		var seen sync.Map // by cluster
		s := usual
		s.nkpFlags, s.needs = []string{"--load-balancer-addresses=false"}, ownSettings
		s.before = func(c *cluster) {
			c.loadK3s()
			seen.Store(c, c.addSvclb())
		}
		onEveryPlaneWith(t, s, func(t *testing.T, c *cluster) {
			traefik := by(c.named["traefik"])
			passed, _ := seen.Load(c)
			through := func(p probe) {
				t.Helper()
				before := passed.(*atomic.Int64).Load()
				c.expect(t, p)
				if passed.(*atomic.Int64).Load() == before {
					t.Errorf("%s: no connection came to svclb's pod", p.name)
				}
			}
			through(probe{name: "from outside by svclb of this node", from: c.External, to: k3s1.on(80), want: traefik})
			through(probe{name: "from a pod by svclb of this node", from: c.pod, to: k3s1.on(80), want: traefik})
			through(probe{name: "from the node by svclb of this node", from: c.Node, to: k3s1.on(80), want: traefik})
			before := passed.(*atomic.Int64).Load()
			c.expect(t,
				probe{name: "from a pod, svclb of the other node answers", from: c.pod, to: k3s2.on(80), want: by(c.Remote).keep()},
				probe{name: "the NodePort works", from: c.External, to: k3s1.on(nodePorts[0]), want: traefik},
				probe{name: "the ClusterIP works", from: c.pod, to: traefikIP.on(80), want: traefik},
			)
			if passed.(*atomic.Int64).Load() != before {
				t.Error("connections to other addresses came to svclb's pod")
			}
		})
	})
	t.Run("externalTrafficPolicy Local", func(t *testing.T) {
		onEveryPlaneWith(t, with(externalLocal), func(t *testing.T, c *cluster) {
			c.expect(t,
				probe{name: "from outside, a node without endpoints is silent", from: c.External, to: k3s1.on(80), want: dropped},
				probe{name: "and so is its NodePort", from: c.External, to: k3s1.on(nodePorts[1]), want: dropped},
				probe{name: "a pod is served", from: c.pod, to: k3s1.on(80), want: by(c.named["traefik"]).keep()},
				probe{name: "a pod is served at the other node's address", from: c.pod, to: k3s2.on(443), want: by(c.named["traefik"]).keep()},
			)
		})
	})
}
