package windows

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// A network that is deleted and created again is served at once, because HNS notifies: the next regular check is half a minute away.
// Also after HNS ended the registration, and without notifications at the next check.
func TestNetworkIsRecreated(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*bed)
		next  time.Duration // until a network is noticed
		want  int           // registrations
	}{
		{"notified", func(*bed) {}, 0, 1},
		{"HNS was restarted", func(b *bed) { b.hns.Disconnect() }, 0, 2},
		{"no notifications", nil, defaultAudit, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, hns.NetworkOverlay, newest, ownClock)
				if c.setup == nil {
					b.hns.Inject(hnsfake.Fault{Func: "HcnRegisterServiceCallback", Times: -1, Code: hns.CodeNotImplemented, Text: "Not implemented."})
				}
				b.simple("web", "10.99.0.1", "100.244.1.1")
				b.flush()
				stop := b.run()
				settle()
				if s := b.plane.Detail(); b.count() != 1 || !s.InStep || s.Notifies != (c.setup != nil) {
					t.Errorf("%d load balancers, status %+v", b.count(), s)
				}
				if c.setup != nil {
					c.setup(b)
					settle()
				}
				if s := b.plane.Detail(); s.Notifies != (c.setup != nil) {
					t.Errorf("status %+v", s)
				}

				b.hns.DropLoadBalancer(b.hns.LoadBalancers()[0].ID)
				b.hns.RemoveNetwork(b.network)
				time.Sleep(c.next)
				settle()
				if s := b.plane.Detail(); !strings.Contains(s.Error, "HNS has no network") {
					t.Errorf("without the network: status %+v", s)
				}
				time.Sleep(5 * time.Minute) // by then nkp looks for the network every half minute
				settle()
				b.network = b.hns.AddNetwork("Calico", hns.NetworkOverlay, routes)
				time.Sleep(c.next)
				settle()
				if b.count() != 1 || remotes(b) != 2 {
					t.Errorf("on the new network: %d load balancers, %d remote endpoints", b.count(), remotes(b))
				}

				stop()
				if n := hnsfake.Count(b.hns.Calls(), "HcnRegisterServiceCallback"); n != c.want {
					t.Errorf("%d registrations, want %d", n, c.want)
				}
				if b.plane.Detail().Notifies {
					t.Error("the registration outlives Run")
				}
			})
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
