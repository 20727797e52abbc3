//go:build linux

package packets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// broken is a situation in which a connection does not come about, or not to where it should, and what names the cause.
type broken struct {
	name string
	// breaks brings the situation about, on a cluster whose Service default/web at 40.0.0.1:80 works.
	breaks func(t *testing.T, c *cluster, web *v1.Service)
	// flags are further ones of the agent, settings of all commands.
	flags, settings []string
	// gate: it is one of the situations of the gate, each for its kind. kernel: it is tried on the kernel datapath, too.
	gate, kernel bool
	// mends: nkp puts it right by itself after some seconds, so that it is broken again before each look. gone: there is no bridge that
	// could have a packet.
	mends, gone bool
	// from and to are the connection, err how it fails; nil: it does not, and the pod with number answers gets it.
	from    func(c *cluster) *testbed.Host
	to      string
	err     error
	answers int
	// control is answered although the connection is not; nil: cluster.direct. It is called 20 times.
	control func()
	// live: trace is asked to look at the switch, too.
	live bool
	// What the commands must say, as regular expressions over lines; status may say nothing about what concerns one Service.
	status, services, trace string
}

func aPod(c *cluster) *testbed.Host     { return c.pods[1].Host }
func outsider(c *cluster) *testbed.Host { return c.External }

// A flow of default/web's own, which leads its cluster IP to its endpoints.
const webFlow = "table=1,tcp,nw_dst=40.0.0.1,tp_dst=80"

// For what commonly goes wrong with a Service, the commands name the cause, and packets show that it is the cause:
// docs/runbook.md goes by these words. That an API server does not answer is tested where there is one, in test/k8s/e2e.
func TestBrokenSituations(t *testing.T) {
	for _, b := range []broken{
		{
			name: "wrong endpoint port",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.put(slice(web, 9999, at(c.pods[0].IP4)))
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrRefused,
			services: `PROBLEM: the Service's targetPort is 8080, but connections go to port 9999 of EndpointSlice default/web-1, which counts\n`,
			trace: `delivered to 10\.0\.0\.11:9999\n.*this is port 9999 of EndpointSlice default/web-1; whether anything listens there nkp cannot see\n` +
				`.*the Service's targetPort is 8080, but connections go to port 9999 of EndpointSlice default/web-1, which counts\n`,
		},
		{
			name: "no endpoint has the port's name",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				s := slice(web, 8080, at(c.pods[0].IP4))
				name := "https"
				s.Ports[0].Name = &name
				c.put(s)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrRefused,
			services: `PROBLEM: no endpoint is in force: new connections are refused: the Service has no endpoints at this port: its EndpointSlices have ports https/TCP, not http/TCP `,
			trace:    `refused .*: the Service has no endpoints at this port: its EndpointSlices have ports https/TCP, not http/TCP `,
		},
		{
			name: "no EndpointSlice",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.remove(slice(web, 8080))
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrRefused,
			services: `PROBLEM: .*: the Service has no endpoints: no IPv4 EndpointSlice names it\n`,
			trace:    `refused .*: the Service has no endpoints: no IPv4 EndpointSlice names it\n`,
		},
		{
			name: "no endpoint is ready",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.put(slice(web, 8080, endpointWith(at(c.pods[0].IP4), notReady)))
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrRefused,
			services: `(?s)endpoint 10\.0\.0\.11:8080, on this node: NOT in force: not ready\n.*PROBLEM: .* refused: none of its endpoints can serve\n`,
			trace:    `(?s)not a candidate: 10\.0\.0\.11:8080 on this node: not ready\n.*refused .*: none of its endpoints can serve\n`,
		},
		{
			name: "policy Local on the wrong node", gate: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				exposed(30080)(web)
				externalLocal(web)
				c.put(web, slice(web, 8080, at(c.remotes[0].IP4)))
			},
			from: outsider, to: hostPort(testbed.NodeIP4, 30080), err: testbed.ErrTimeout,
			services: `PROBLEM: no endpoint on this node: new connections to NodePort 30080 \(policy Local\) are dropped`,
			trace:    `(?s)not a candidate: 10\.0\.1\.11:8080: on node-2\n.*dropped: the policy is Local and no endpoint in force is on this node, but 1 is on others\n`,
		},
		{
			name: "source range excludes the client",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.balance(t, web)
				web.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
				c.put(web)
			},
			from: outsider, to: "20.0.0.1:80", err: testbed.ErrTimeout,
			services: `LoadBalancer 20\.0\.0\.1:80, policy Cluster, only from 198\.51\.100\.0/24\n`,
			trace:    `dropped: loadBalancerSourceRanges allow only 198\.51\.100\.0/24, and 192\.168\.0\.2 is not among them\n`,
		},
		{
			name: "ipMode Proxy",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.balance(t, web)
				proxyMode(web)
				c.put(web)
			},
			from: outsider, to: "20.0.0.1:80", err: testbed.ErrUnreachable, // it goes on to where there is no load balancer
			services: `LoadBalancer 20\.0\.0\.1:80, NOT served: the load balancer wants the traffic itself: its ingress has ipMode Proxy\n`,
			trace:    `default/web, port http has 20\.0\.0\.1:80 as LoadBalancer, but the load balancer wants the traffic itself: its ingress has ipMode Proxy\n`,
		},
		{
			name: "port taken on the node",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				var l net.Listener
				must(t, c.Node.Do(func() (err error) { l, err = net.Listen("tcp", ":30080"); return err }))
				t.Cleanup(func() { l.Close() })
				exposed(30080)(web)
				c.put(web)
			},
			from: outsider, to: hostPort(testbed.NodeIP4, 30080), answers: 0, // the Service's pod, not the process
			status:   `WARNING +NodePort 30080/TCP of default/web:http is also listened on by ` + taker() + ` at \[::\]:30080: clients reach the Service, not the process\n`,
			services: `PROBLEM: NodePort 30080/TCP of default/web:http is also listened on by ` + taker() + ``,
			trace:    `(?s)delivered to 10\.0\.0\.11:8080\n.*NodePort 30080/TCP of default/web:http is also listened on by ` + taker() + ``,
		},
		{
			name: "another Service at the same address",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				older := service("older", "40.0.0.2", func(s *v1.Service) { s.Spec.ExternalIPs = []string{"20.0.0.9"} })
				web.Spec.ExternalIPs = []string{"20.0.0.9"}
				web.CreationTimestamp.Time = time.Now()
				c.put(older, slice(older, 8080, at(c.pods[2].IP4)), web)
			},
			from: outsider, to: "20.0.0.9:80", answers: 2, // the older Service's pod
			status:   `WARNING .*Service default/web: spec\.externalIPs\[0\]: 20\.0\.0\.9:80/TCP belongs to Service default/older:http, which is older: this frontend is not served\n`,
			services: `(?s)ExternalIP 20\.0\.0\.9:80, policy Cluster, NOT served: it belongs to default/older:http\n.*PROBLEM: .*belongs to Service default/older:http, which is older`,
			trace:    `Service default/web, port http wants the same address and port \(ExternalIP\): it gets nothing of this, default/older:http has it\n`,
		},
		{
			name: "flow deleted by hand", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Ofctl("del-flows", c.Bridge, webFlow)
				must(t, err)
			},
			flags: []string{"--audit-period", "1h"}, // it counts its flows every few seconds nevertheless
			mends: true,
			from:  aPod, to: "40.0.0.1:80", err: testbed.ErrRefused, live: true,
			status: `in step .*, compared \S+ ago: .*; repaired [1-9]\d* times?\n`,
			trace: `(?s)the switch says reject, the model deliver\n.*default/web:http: flow missing or different on the switch: cookie=0x[0-9a-f]+,table=1,.*nw_dst=40\.0\.0\.1.*` +
				`"nkp diff" shows all differences`,
		},
		{
			name: "flow of all Services deleted by hand", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Ofctl("del-flows", c.Bridge, "table=30,ip,nw_dst=10.0.0.11")
				must(t, err)
			},
			mends: true,
			from:  aPod, to: "40.0.0.1:80", answers: 0, live: true, // nkp puts it right meanwhile
			status: `in step .*; repaired [1-9]\d* times?\n`,
			trace: `(?s)what all Services share: flow missing or different on the switch: cookie=0x[0-9a-f]+,` +
				`table=30,priority=200,ip,nw_dst=10\.0\.0\.11,.*the running agent repairs them`,
		},
		{
			name: "flow deleted by hand, and put right", gate: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Ofctl("del-flows", c.Bridge, webFlow)
				must(t, err)
			},
			flags: []string{"--audit-period", "1s"},
			from:  aPod, to: "40.0.0.1:80", answers: 0, live: true,
			status: `(?s)in step +the switch holds what it should, last change \S+ ago, compared \S+ ago: [^\n]*; repaired 1 time\n.*` +
				`another program had changed flows or groups of default/web:http: `,
			trace: `verdict: deliver\nwhat is installed agrees\n`,
		},
		{
			name: "conntrack zone full", gate: true, kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.limitConntrack(t, "dpctl/ct-set-limits", "zone=1001,limit=1")
				c.keepOpen(t, aPod(c), "40.0.0.1:80")
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
			status: `(?s)conntrack +table \d+ of \d+ entries; zone 1001 1 of 1 entries[;\n].*` +
				`WARNING +conntrack zone 1001 1 of 1 entries: full, new connections to Services fail; raise the limit \(ovs-appctl dpctl/ct-set-limits zone=1001,limit=N\)`,
			trace: `(?s)conntrack: table \d+ of \d+ entries; zone 1001 1 of 1 entries[;\n].*does not agree: conntrack zone 1001 1 of 1 entries: full, so that a new connection fails\n`,
		},
		{
			name: "conntrack zone closed",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.limitConntrack(t, "dpctl/ct-set-limits", "zone=1001,limit=0")
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
			status: `WARNING +conntrack zone 1001 0 of 0 entries: full, `,
			trace:  `does not agree: conntrack zone 1001 0 of 0 entries: full, `,
		},
		{
			name: "conntrack default limit reached", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.limitConntrack(t, "dpctl/ct-set-limits", "default=1")
				c.keepOpen(t, aPod(c), "40.0.0.1:80")
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
			status: `WARNING +conntrack zone 1001 1 of 1 entries: full, `,
			trace:  `does not agree: conntrack zone 1001 1 of 1 entries: full, `,
		},
		{
			name: "conntrack table full",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.limitConntrack(t, "dpctl/ct-set-maxconns", "1")
				c.attempts(t)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
			status: `(?s)conntrack +table \d+ of 1 entries; failures table_full [1-9]\d*; nkp's zones have no limit\n.*` +
				`WARNING +conntrack table \d+ of 1 entries: full, new connections to Services fail; raise the limit \(ovs-appctl dpctl/ct-set-maxconns N; `,
			trace: `does not agree: conntrack table \d+ of 1 entries: full, `,
		},
		{
			name: "port of an endpoint gone", gate: true, kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Vsctl("del-port", c.Bridge, c.pods[0].Interface)
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			services: `PROBLEM: no port of bridge br-int has the address of the local endpoint 10\.0\.0\.11:8080 in external_ids:ip_addresses: `,
			trace:    `no port of bridge br-int has the address of the local endpoint 10\.0\.0\.11:8080 in external_ids:ip_addresses: `,
		},
		{
			name: "device of an endpoint gone", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Node.Exec(c.ctx, "ip", "link", "del", c.pods[0].Interface)
				must(t, err)
				p := c.pods[0]
				_, err = c.Vsctl("del-port", c.Bridge, p.Interface)
				must(t, err)
				_, err = c.Vsctl("--no-wait", "add-port", c.Bridge, p.Interface, "--", "set", "Interface", p.Interface,
					"external_ids:iface-id="+p.IfaceID, "external_ids:ip_addresses="+p.IP4.String())
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			services: `PROBLEM: nothing reaches the local endpoint 10\.0\.0\.11:8080: its port pod-11 is not on bridge br-int: .+\n`,
			trace:    `nothing reaches the local endpoint 10\.0\.0\.11:8080: its port pod-11 is not on bridge br-int: .+\n`,
		},
		{
			name: "link of an endpoint down", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.pods[0].Exec(c.ctx, "ip", "link", "set", "eth0", "down")
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			services: `PROBLEM: nothing reaches the local endpoint 10\.0\.0\.11:8080: the link of its port pod-11 \(OpenFlow port 11\) is down\n`,
			trace:    `nothing reaches the local endpoint 10\.0\.0\.11:8080: the link of its port pod-11 \(OpenFlow port 11\) is down\n`,
		},
		{
			name: "OpenFlow port of an endpoint does not forward", gate: true, kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Ofctl("mod-port", c.Bridge, "11", "no-forward")
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			services: `PROBLEM: the port of the local endpoint 10\.0\.0\.11:8080: its OpenFlow configuration is no-forward: the switch sends nothing to it `,
			status:   `WARNING +port pod-11: its OpenFlow configuration is no-forward: the switch sends nothing to it `,
		},
		{
			name: "device of an endpoint switched off", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Node.Exec(c.ctx, "ip", "link", "set", c.pods[0].Interface, "down")
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			services: `PROBLEM: nothing reaches the local endpoint 10\.0\.0\.11:8080: its port pod-11 \(OpenFlow port 11\): Interface\.admin_state is down\n`,
			status:   `WARNING +port pod-11: Interface\.admin_state is down: nothing passes\n`,
			trace:    `nothing reaches the local endpoint 10\.0\.0\.11:8080: its port pod-11 \(OpenFlow port 11\): Interface\.admin_state is down\n`,
		},
		{
			name: "process of an endpoint gone",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				c.put(slice(web, 8080, at(c.pods[0].IP4), at(c.idlePod(t).IP4)))
				c.settle()
				c.attempts(t)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrRefused, live: true,
			services: `PROBLEM: endpoint 10\.0\.0\.14:8080: TCP connections in the conntrack table at \d\d:\d\d:\d\dZ, closed ones for half a minute: 0 answered, 0 without answer, [1-9]\d* refused: nothing listens at that address and port, or .*\n`,
			trace: `(?s)endpoint 10\.0\.0\.14:8080: TCP connections in the conntrack table at \d\d:\d\d:\d\dZ, closed ones for half a minute: 0 answered, 0 without answer, [1-9]\d* refused: nothing listens at that address and port, or .*\n` +
				`.*an existing connection \(.*\): goes to 10\.0\.0\.14:8080 since it was opened; the endpoint refused it\n`,
		},
		{
			name: "link of an endpoint on another node down", kernel: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.remotes[0].Exec(c.ctx, "ip", "link", "set", "eth0", "down")
				must(t, err)
				c.put(slice(web, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4)))
				c.settle()
				c.attempts(t)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
			services: `PROBLEM: endpoint 10\.0\.1\.11:8080: TCP connections in the conntrack table at \d\d:\d\d:\d\dZ, closed ones for half a minute: 0 answered, [1-9]\d* without answer, 0 refused\n`,
			trace: `(?s)endpoint 10\.0\.1\.11:8080: TCP connections in the conntrack table at \d\d:\d\d:\d\dZ, closed ones for half a minute: 0 answered, [1-9]\d* without answer, 0 refused\n` +
				`[^\n]*an existing connection \([^\n]*, SYN_SENT\): goes to 10\.0\.1\.11:8080 since it was opened; the endpoint has not answered it\n`,
		},
		{
			name: "wrong MAC of a pod in the database",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Vsctl("set", "Interface", c.pods[0].Interface, `external_ids:attached-mac="02:00:00:00:99:99"`)
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout,
			status: `WARNING +port pod-11: its MAC in the database \(external_ids:attached-mac, else mac_in_use\) is 02:00:00:00:99:99, but the bridge has learned 02:00:00:00:00:11 there: `,
		},
		{
			name: "wrong MAC of the router",
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Node.Ping(c.ctx, testbed.RouterIP4) // the kernel resolves it
				must(t, err)
			},
			settings: []string{"--gateway-mac", "02:00:00:00:99:98"},
			from:     aPod, to: "40.0.0.1:80", answers: 0,
			status: `WARNING +--gateway-mac is 02:00:00:00:99:98, but the kernel has ` + testbed.GatewayMAC + ` for the next hop of br-int's default route`,
		},
		{
			name:     "a pod's port as the uplink",
			breaks:   func(t *testing.T, c *cluster, web *v1.Service) {},
			settings: []string{"--uplink-port", "pod-13"},
			from:     aPod, to: "40.0.0.1:80", answers: 0,
			status: `WARNING +--uplink-port pod-13 is a pod's port \(pod-13, iface-id ".+", addresses \[10\.0\.0\.13 fd00:a::13\]\): pass the port that leads out of the node\n`,
		},
		{
			name:     "wrong cluster CIDR",
			breaks:   func(t *testing.T, c *cluster, web *v1.Service) {},
			settings: []string{"--cluster-cidr", "10.9.0.0/16,fd00:a::/64"},
			from:     aPod, to: "40.0.0.1:80", answers: 0,
			status: `WARNING +3 of 3 IPv4 pod addresses on bridge br-int, such as 10\.0\.0\.11, lie outside --cluster-cidr 10\.9\.0\.0/16: pods count as clients from outside, ` +
				`and their connections to Services are masqueraded; correct it\n`,
			trace: `masquerade`,
		},
		{
			name: "bridge gone", gone: true,
			breaks: func(t *testing.T, c *cluster, web *v1.Service) {
				_, err := c.Vsctl("del-br", c.Bridge)
				must(t, err)
			},
			from: aPod, to: "40.0.0.1:80", live: true,
			status: `(?s)bridge +br-int does NOT exist;.*` +
				`WARNING +bridge br-int does not exist any more \(there is none at all\): Services are not served to the pods on it; make it again`,
			services: `counters: n/a now: bridge br-int does not exist any more \(there is none at all\)\n`,
			trace:    `what is installed does not agree: bridge br-int does not exist any more \(there is none at all\): nothing of nkp's sees the packet\n`,
		},
	} {
		if onKernelDatapath() && !b.kernel {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			if !b.gate {
				nightly.Only(t, "the gate has one situation of each kind")
			}
			c := newCluster(t, testbed.Options{}, b.settings...)
			c.servePods(t)
			web := service("web", "40.0.0.1", func(s *v1.Service) {
				s.Spec.Selector = map[string]string{"app": "web"}
				s.Spec.Ports[0].TargetPort.IntVal = 8080
			})
			c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
			c.runWith(b.flags...)
			c.settle()
			c.ask(t, aPod(c), "tcp", "40.0.0.1:80", c.pods[0].Name)
			b.breaks(t, c, web)
			b.check(t, c, func() {
				if b.mends {
					b.breaks(t, c, web)
				}
			})
		})
	}
}

// balance makes a Service a load balancer at 20.0.0.1, and sees that it works.
func (c *cluster) balance(t *testing.T, web *v1.Service) {
	t.Helper()
	loadBalancer("20.0.0.1")(web)
	c.put(web)
	c.settle()
	c.ask(t, outsider(c), "tcp", "20.0.0.1:80", c.pods[0].Name)
}

// idlePod adds a pod on which nothing listens.
func (c *cluster) idlePod(t *testing.T) *testbed.Pod {
	t.Helper()
	p, err := c.AddPod(testbed.PodSpec{})
	must(t, err)
	return p
}

// attempts begins connections to 40.0.0.1:80 from a pod, so many that each of two endpoints gets one. They may fail.
func (c *cluster) attempts(t *testing.T) {
	t.Helper()
	for range chance.Trials(0.5) {
		c.sends(t, aPod(c), "tcp", "40.0.0.1:80")
	}
}

// limitConntrack sets a limit of the datapath's conntrack table.
func (c *cluster) limitConntrack(t *testing.T, args ...string) {
	t.Helper()
	_, err := c.Appctl(args...)
	if testbed.Offload() && err != nil && strings.Contains(err.Error(), "Operation not supported") {
		t.Skip("the kernel of make test-offload has no CONFIG_NETFILTER_CONNCOUNT; make test-kernel runs it")
	}
	must(t, err)
}

// keepOpen opens a connection that stays open until the test ends.
func (c *cluster) keepOpen(t *testing.T, from *testbed.Host, to string) {
	t.Helper()
	conn, err := from.DialTCP(c.ctx, to, testbed.DialOptions{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
}

// followsFrom is what status says of a bridge that it knows nothing of.
var followsFrom = regexp.MustCompile(`no uplink|uplink port is unknown|address has moved|none of the node's addresses is on bridge`)

// check waits until all three commands say what they must, and the connection goes as it must.
func (b *broken) check(t *testing.T, c *cluster, again func()) {
	t.Helper()
	trace := []string{"trace", "--from", b.from(c).IP(testbed.NodeIP4).String(), "--to", b.to}
	if b.live {
		trace = append(trace, "--live")
	}
	for _, q := range []struct {
		want string
		args []string
	}{
		{b.trace, trace},
		{b.services, []string{"services", "default/web", "-o", "wide"}},
		{b.status, []string{"status"}},
	} {
		want := regexp.MustCompile(q.want)
		out := ""
		err := wait.Until(t.Context(), func() error {
			if q.args[0] == "trace" {
				again()
			}
			stdout, stderr, _ := c.nkp(append(q.args, "--socket", c.socket())...)
			if out = stdout + stderr; !want.MatchString(out) {
				return fmt.Errorf("it does not say %q", q.want)
			}
			return nil
		})
		t.Logf("nkp %s\n%s", strings.Join(q.args, " "), out)
		if err != nil {
			t.Errorf("nkp %s: %v", strings.Join(q.args, " "), err)
		}
		if m := followsFrom.FindString(out); m != "" && q.args[0] == "status" {
			t.Errorf("status has what only follows from the cause (%q):\n%s", m, out)
		}
	}
	if b.gone {
		return
	}
	from := b.from(c)
	var o testbed.AskOptions
	if b.err == testbed.ErrTimeout {
		control := b.control
		if control == nil {
			control = c.direct(t, from)
		}
		o.Until = func(context.Context) error { // silence is what comes before so many answers on the same bridge
			for range 20 {
				control()
			}
			return nil
		}
	}
	wait.NoError(t, from.Name+" -> "+b.to, func() error {
		again()
		a, err := from.AskWith(c.ctx, "tcp", b.to, o)
		if !errors.Is(err, b.err) || b.err == nil && a.Pod != c.pods[b.answers].Name {
			return fmt.Errorf("answered by %q, %v; want %v", a.Pod, err, b.err)
		}
		return nil
	})
}

// taker is how the process that has taken a port is named: under the unit's restrictions, without CAP_SYS_PTRACE, not at all.
func taker() string {
	if os.Getenv("NKP_WRAP") != "" {
		return "a process that cannot be seen from here"
	}
	return `packets\.test \(pid \d+\)`
}
