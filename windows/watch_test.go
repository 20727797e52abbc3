package windows

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// A network that is deleted and created again is served at once, because HNS notifies: the next regular check is half a minute away.
// Also after HNS ended the registration, and without notifications at the next check.
func TestNetworkIsRecreated(t *testing.T) {
	const soon = 5 * time.Second
	for _, c := range []struct {
		name  string
		audit time.Duration
		setup func(*bed)
		want  int // registrations
	}{
		{"notified", defaultAudit, func(*bed) {}, 1},
		{"HNS was restarted", defaultAudit, func(b *bed) {
			b.hns.Disconnect()
			eventually(t, "another registration", func() bool { return b.plane.Detail().Notifies })
		}, 2},
		{"no notifications", 200 * time.Millisecond, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
				o.now, o.MinSync, o.AuditPeriod = time.Now, 10*time.Millisecond, c.audit
			})
			if c.setup == nil {
				b.hns.Inject(hnsfake.Fault{Func: "HcnRegisterServiceCallback", Times: -1, Code: hns.CodeNotImplemented, Text: "Not implemented."})
			}
			b.simple("web", "10.99.0.1", "100.244.1.1")
			b.flush()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.plane.Run(ctx) }()
			eventually(t, "the load balancer", func() bool { return b.count() == 1 && b.plane.Detail().InStep })
			if b.plane.Detail().Notifies != (c.setup != nil) {
				t.Errorf("status %+v", b.plane.Detail())
			}
			if c.setup != nil {
				c.setup(b)
			}
			b.hns.DropLoadBalancer(b.hns.LoadBalancers()[0].ID)
			b.hns.RemoveNetwork(b.network)
			eventually(t, "nkp waits for the network", func() bool { return strings.Contains(b.plane.Detail().Error, "HNS has no network") })
			time.Sleep(50 * time.Millisecond) // a sync that has begun ends
			began := time.Now()
			b.network = b.hns.AddNetwork("Calico", hns.NetworkOverlay, routes)
			eventually(t, "the load balancer on the new network", func() bool { return b.count() == 1 && remotes(b) == 2 })
			if took := time.Since(began); took > soon {
				t.Errorf("it took %v", took)
			} else {
				t.Logf("served %v after the network was created", took.Round(time.Millisecond))
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if n := hnsfake.Count(b.hns.Calls(), "HcnRegisterServiceCallback"); n != c.want {
				t.Errorf("%d registrations, want %d", n, c.want)
			}
			if b.plane.Detail().Notifies {
				t.Error("the registration outlives Run")
			}
		})
	}
}

// A network name that HNS does not have is an error that names those it has.
func TestWrongNetworkName(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) { o.NetworkName = "calico-overlay" })
	b.hns.AddNetwork("nat", "NAT", nil)
	b.sync()
	if s := b.plane.Detail(); s.Error != `waiting: HNS has no network "calico-overlay" (it has Calico, nat): the CNI plugin makes it, or set --network-name` {
		t.Errorf("status %q", s.Error)
	}
}

// On an L2Bridge --source-vip is the source VIP of all IPv4 load balancers, without an endpoint of nkp's for it; without the flag they have none.
func TestSourceVIPOnL2Bridge(t *testing.T) {
	for _, vip := range []string{"", nodeIP} {
		b := newBed(t, hns.NetworkL2Bridge, newest, func(o *Options) {
			if vip != "" {
				o.SourceVIP = netip.MustParseAddr(vip)
			}
		})
		b.simple("web", "10.99.0.1", "10.244.2.7")
		b.simple("web6", "fd00:99::1", "fd00:244::7")
		b.good()
		if l := b.mustHave("10.99.0.1", 80, "10.244.2.7"); l.SourceVIP != vip {
			t.Errorf("source VIP %q, want %q", l.SourceVIP, vip)
		}
		if l := b.mustHave("fd00:99::1", 80, "fd00:244::7"); l.SourceVIP != "" {
			t.Errorf("IPv6: source VIP %q", l.SourceVIP)
		}
		if n := len(b.hns.Endpoints()); n != 2 {
			t.Errorf("%d endpoints, want one for each backend", n)
		}
		if s := b.plane.Detail(); s.SourceVIP != vip {
			t.Errorf("status %+v", s)
		}
	}
}
