package windows

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Codes that these issues quote.
const (
	codeAlreadyExists = 0x800700B7
	codeUnavailable   = 0x800706BA
)

// publicIssue is what HNS did to kube-proxy on a real node, or what kube-proxy did itself, by a public issue of Kubernetes.
type publicIssue struct {
	number, text string
	networkType  string
	version      hns.Version
	// down has HNS answer no call before and after the start.
	down bool
	// hurt takes place once HNS is in step. It may block, with the plane running.
	hurt func(b *bed)
	// writes is how many calls may create, change or delete objects from then on; more are needless.
	writes int
	// healed checks what HNS has in the end. Without it HNS must have what it had before.
	healed func(b *bed)
}

// outage has HNS answer no call, and ends the registrations for notifications as a stop of its service does.
func outage(b *bed) {
	b.hns.Inject(hnsfake.Fault{Times: -1, Code: codeUnavailable, Text: "The RPC server is unavailable."})
	b.hns.Disconnect()
}

var publicIssues = []publicIssue{
	{
		number: "139519", text: "HNS restarts and rehydrates: what it had is there again",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) {
			outage(b)
			b.simple("web", "10.96.0.1", "10.244.2.7", "10.244.2.8", "10.244.2.9") // pods are scaled meanwhile
			b.flush()
			time.Sleep(20 * time.Second)
			b.hns.Heal()
		},
		writes: 2, // the new endpoint, the load balancer modified
		healed: func(b *bed) { b.mustHave("10.96.0.1", 80, "10.244.2.7", "10.244.2.8", "10.244.2.9") },
	}, {
		number: "139519", text: "HNS restarts, and rehydrates after nkp has seen it empty: 0xb7",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) {
			lost := b.loadBalancer("10.96.0.1", 80)
			object := hnsfake.Object{"ID": lost.ID, "FrontendVIPs": lost.FrontendVIPs, "PortMappings": lost.PortMappings,
				"HostComputeEndpoints": lost.HostComputeEndpoints, "SchemaVersion": lost.SchemaVersion}
			b.hns.DropLoadBalancer(lost.ID)
			b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: codeAlreadyExists,
				Text: "Cannot create a file when that file already exists.", Do: func() { b.hns.AddLoadBalancer(object) }})
			time.Sleep(defaultAudit)
		},
		writes: 1, // the attempt that HNS refuses
	}, {
		number: "137530", text: "a NodePort whose port HNS does not release: 0x803b0013",
		networkType: hns.NetworkL2Bridge, version: hns.Version{Major: 9, Minor: 5},
		hurt: func(b *bed) {
			b.slice("node", tcp(0, 8080))
			b.flush()
			settle()
			b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 4, Code: hns.CodePortExists,
				Text: "The specified port already exists.", Match: func(a []string) bool { return !strings.Contains(a[0], "FrontendVIPs") }})
			b.slice("node", tcp(0, 8080), "10.244.2.8")
			b.flush()
			settle()
			b.mustHave("10.96.0.2", 80, "10.244.2.8") // the Service's other frontend is served
			f := b.plane.Detail().Failures
			if len(f) != 1 || f[0].Service != "default/node" || !strings.Contains(f[0].Error, "0x803b0013") ||
				!strings.Contains(f[0].Error, "netsh int ipv4 show excludedportrange protocol=tcp") {
				b.t.Errorf("the failure does not say whose port it is and where to look: %+v", f)
			}
		},
		writes: 2 + 1 + 4 + 1, // both load balancers deleted, that of the ClusterIP created; the NodePort's refused, then created
	}, {
		number: "135802", text: "a load balancer removed out of band",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt:   func(b *bed) { b.hns.DropLoadBalancer(b.loadBalancer("10.96.0.1", 80).ID) },
		writes: 1,
	}, {
		number: "131466", text: "Modify succeeds and changes nothing",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) {
			b.hns.SetVersion(hns.Version{Major: 15, Minor: 4}) // that of the fake then does nothing
			b.simple("web", "10.96.0.1", "10.244.2.7", "10.244.2.8", "10.244.2.9")
			b.flush()
		},
		writes: 4, // the new endpoint, the modification, the load balancer deleted and created
		healed: func(b *bed) { b.mustHave("10.96.0.1", 80, "10.244.2.7", "10.244.2.8", "10.244.2.9") },
	}, {
		number: "136241", text: "one family of a dual-stack Service changes: the other's objects stay",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) {
			b.slice("both", tcp(0, 8080), "fd00:244::7", "fd00:244::8")
			b.flush()
		},
		writes: 1 + 4, // the new endpoint, the IPv6 load balancers of ClusterIP, NodePort, external and ingress address
		healed: func(b *bed) {
			for vip, endpoints := range map[string][]string{
				"10.96.0.3": {"10.244.2.7"}, "192.0.2.3": {"10.244.2.7"}, "198.51.100.3": {"10.244.2.7"},
				"fd00:96::3": {"fd00:244::7", "fd00:244::8"}, "2001:db8::3": {"fd00:244::7", "fd00:244::8"},
				"2001:db8::4": {"fd00:244::7", "fd00:244::8"},
			} {
				b.mustHave(vip, 80, endpoints...)
			}
		},
	}, {
		number: "138000", text: "the address of a pod elsewhere is a pod's of this node, before the API server says so",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) { b.pod("10.244.2.8") },
		// The two load balancers modified, and only then the remote endpoint deleted.
		writes: 5,
		healed: func(b *bed) {
			b.mustHave("10.96.0.1", 80, "10.244.2.7", "10.244.2.8")
			for _, e := range b.hns.Endpoints() {
				if e.Remote() && e.IpConfigurations[0].IpAddress == "10.244.2.8" {
					b.t.Error("there is still a remote endpoint of the pod's address")
				}
			}
		},
	}, {
		number: "141489", text: "a load balancer without ports",
		networkType: hns.NetworkL2Bridge, version: newest,
		hurt: func(b *bed) {
			b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.96.0.1"}})
			b.simple("web", "10.96.0.1", "10.244.2.7")
			b.flush()
		},
		writes: 1,
		healed: func(b *bed) { b.mustHave("10.96.0.1", 80, "10.244.2.7") },
	}, {
		number: "139503", text: "HNS is down when the agent starts",
		networkType: hns.NetworkL2Bridge, version: newest,
		down:   true,
		hurt:   func(b *bed) { time.Sleep(20 * time.Second); b.hns.Heal() },
		writes: 18, // all objects, each once
		healed: func(b *bed) { b.mustHave("10.96.0.1", 80, "10.244.2.7", "10.244.2.8") },
	},
}

// What public issues report of HNS heals within 30 s of the cause's end, without a needless write, and by the same agent.
func TestPublicIssues(t *testing.T) {
	for _, c := range publicIssues {
		t.Run(c.number+" "+c.text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, c.networkType, c.version, ownClock)
				b.simple("web", "10.96.0.1", "10.244.2.7", "10.244.2.8")
				b.service("node", v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "10.96.0.2",
					Ports: []v1.ServicePort{{Port: 80, NodePort: 31999}}})
				b.slice("node", tcp(0, 8080), "10.244.2.8")
				if hns.FeaturesOf(c.version).IPv6DualStack {
					b.service("both", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.3",
						ClusterIPs:  []string{"10.96.0.3", "fd00:96::3"},
						ExternalIPs: []string{"192.0.2.3", "2001:db8::3"}, Ports: []v1.ServicePort{{Port: 80, NodePort: 31998}}},
						ingress("198.51.100.3", "2001:db8::4"))
					b.slice("both", tcp(0, 8080), "10.244.2.7")
					b.slice("both", tcp(0, 8080), "fd00:244::7")
				}
				b.flush()
				if c.down {
					outage(b)
				}
				defer b.run()()
				settle()
				if s := b.plane.Detail(); s.InStep == c.down {
					t.Fatalf("before: %+v", s)
				}

				before := b.hns.Dump()
				b.hns.Calls()
				c.hurt(b)
				time.Sleep(30 * time.Second)
				settle()
				if s := b.plane.Detail(); !s.InStep {
					t.Errorf("not in step after 30 s: %s", s.Why)
				}
				calls := b.hns.Calls()
				if n := writes(calls); n > c.writes {
					t.Errorf("%d calls that write, want at most %d: %v", n, c.writes, written(calls))
				}
				if c.healed != nil {
					c.healed(b)
				} else if got := b.hns.Dump(); got != before {
					t.Errorf("HNS has\n%swant\n%s", got, before)
				}
				b.sane()

				time.Sleep(3 * defaultAudit)
				synctest.Wait()
				if calls := b.hns.Calls(); writes(calls) > 0 {
					t.Errorf("it goes on writing: %v", written(calls))
				}
			})
		})
	}
}

// written returns the calls that create, change or delete objects, for messages.
func written(calls []hnsfake.Call) (list []string) {
	for _, c := range calls {
		if writes([]hnsfake.Call{c}) > 0 {
			list = append(list, c.Func)
		}
	}
	slices.Sort(list)
	return list
}
