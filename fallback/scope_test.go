//go:build linux

package fallback_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// With scope Host, beside a bridge that serves its pods itself, the node's own traffic and what comes from
// outside is served, and what comes from the bridge's pods is not touched. A kube-proxy, or nkp, that had another
// scope here leaves no jump behind.
func TestScopes(t *testing.T) {
	eachPlane(t, func(t *testing.T, backend restore.Backend) {
		b, pods := bed(t, testbed.Options{PodBridge: true, NoServiceRoutes: true})
		o := defaults(backend)
		o.Scope, o.PodDevice = serving.Host, b.Bridge
		p := start(t, b, o, nodeObject+
			service("web", 1, "type: NodePort")+endpoints("web", pods[0])+
			service("here", 2, "type: NodePort", "externalTrafficPolicy: Local")+endpoints("here", pods[0])+
			service("none", 3, "type: NodePort")+endpoints("none"))
		if got := p.status().Scope; got != "host" {
			t.Errorf("scope %q", got)
		}
		for _, c := range scopeHostPackets(b, pods) {
			c.check(t)
		}
		list := func(o ...string) string {
			return inIPTables(t, b, backend, append([]string{"iptables-save"}, o...)...)
		}
		absent := []string{"-A PREROUTING", "-A FORWARD"}
		if backend == onNFTables {
			list = func(...string) string { return inNFTables(t, b, "list", "table", "ip", "nkp") }
			absent = []string{"hook prerouting", "hook forward", "40.0.0.1"}
		}
		for _, scope := range []serving.Scope{serving.Everything, serving.Host, serving.Own} { // from any to any
			p.kill()
			o.Scope = scope
			p = start(t, b, o, nodeObject+service("web", 1, "type: NodePort")+endpoints("web", pods[0]))
			if scope == serving.Host && backend != onNFTables {
				nat := list("-t", "nat")
				hooks := regexp.MustCompile(`-A PREROUTING .*KUBE-SERVICES`).FindAllString(nat, -1)
				if len(hooks) != 1 || !strings.Contains(hooks[0], "! -i "+b.Bridge) {
					t.Errorf("PREROUTING after a change of scope: %q", hooks)
				}
			}
		}
		for _, text := range absent {
			if s := list(); strings.Contains(s, text) {
				t.Errorf("after a change of scope to own there is %q:\n%s", text, s)
			}
		}
		packet{what: "the node to its own NodePort", from: b.Node, proto: "tcp", to: "172.16.0.2:30001", by: []string{"pod-11"}}.check(t)
	})
}

// scopeHostPackets are what comes of packets with scope Host.
func scopeHostPackets(b *testbed.Bed, pods []*testbed.Pod) []packet {
	return []packet{
		{what: "the node to a ClusterIP", from: b.Node, proto: "tcp", to: "40.0.0.1:80", by: []string{"pod-11"}, as: b.Node.IP4},
		{what: "the node to a ClusterIP", from: b.Node, proto: "udp", to: "[fd00:40::1]:53", by: []string{"pod-11"}},
		{what: "outside to a NodePort", from: b.External, proto: "tcp", to: "172.16.0.2:30001", by: []string{"pod-11"}},
		{what: "outside to a NodePort, policy Local", from: b.External, proto: "tcp", to: "[fd00:ac::2]:30002", by: []string{"pod-11"}, as: b.External.IP6},
		{what: "localhost", from: b.Node, proto: "tcp", to: "127.0.0.1:30001", by: []string{"pod-11"}},
		{what: "no endpoints", from: b.Node, proto: "tcp", to: "40.0.0.3:80", err: testbed.ErrRefused},
		{what: "a pod's packet to a ClusterIP leaves as it is", from: pods[1].Host, proto: "tcp", to: "40.0.0.1:80", err: testbed.ErrUnreachable},
		{what: "a pod's packet to a NodePort reaches the node itself", from: pods[1].Host, proto: "tcp", to: "172.16.0.2:30001", err: testbed.ErrRefused},
		{what: "pods among themselves", from: pods[1].Host, proto: "tcp", to: "10.0.0.11:80", by: []string{"pod-11"}, as: pods[1].IP4},
	}
}

// The back end is the one that the rest of the node uses.
func TestChoice(t *testing.T) {
	testbed.Linux.Require(t)
	for _, c := range []struct {
		commands []string
		backend  restore.Backend
		reason   string
	}{
		{nil, restore.NFT, "has no more rules"},
		{[]string{"iptables-legacy -A INPUT -j ACCEPT"}, restore.Legacy, "more rules"},
		{[]string{"iptables-legacy -A INPUT -j ACCEPT", "iptables-nft -t nat -N KUBE-SERVICES"}, restore.NFT, "Service chains"},
		{[]string{"ip6tables-legacy -t nat -N KUBE-SERVICES", "iptables-nft -A INPUT -j ACCEPT"}, restore.Legacy, "Service chains"},
		{[]string{"iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "iptables-nft -t nat -N KUBE-SERVICES"}, restore.Legacy, "kubelet"},
		{[]string{"ip6tables-nft -t mangle -N KUBE-KUBELET-CANARY", "iptables-legacy -A INPUT -j ACCEPT"}, restore.NFT, "kubelet"},
	} {
		t.Run(strings.Join(c.commands, ", "), func(t *testing.T) {
			t.Parallel()
			b := testbed.Start(t, testbed.Options{Plane: testbed.Linux})
			for _, command := range c.commands {
				run(t, b.Node, strings.Fields(command)...)
			}
			if s := start(t, b, defaults(""), nodeObject).status(); s.Backend != string(c.backend) || !strings.Contains(s.Reason, c.reason) {
				t.Errorf("%s because %s, want %s because of %q", s.Backend, s.Reason, c.backend, c.reason)
			}
		})
	}
}
