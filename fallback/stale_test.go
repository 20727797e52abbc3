package fallback

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// forgetter is a Worker that does nothing but to forget stale connections.
type forgetter struct {
	*Worker
	status FamilyStatus
	want   map[k8s.PortName]*k8s.ServicePort
}

func newForgetter(set ...func(*Options)) *forgetter {
	o := DefaultOptions()
	for _, f := range set {
		f(&o)
	}
	o.Log, o.Hooks.Hooks = slog.New(slog.DiscardHandler), o.Hooks.WithDefaults()
	f := &forgetter{Worker: NewWorker("iptables", k8s.IPv4, &o, dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)), want: map[k8s.PortName]*k8s.ServicePort{}}
	f.Report = func(change func(*FamilyStatus)) { change(&f.status) }
	f.Stale.Wanted = func() iter.Seq[*k8s.ServicePort] { return maps.Values(f.want) }
	return f
}

func (f *forgetter) Take(u *dataplane.Update) {
	for n, sp := range u.Ports {
		f.Stale.Note(n, f.want[n], sp)
		if f.want[n] = sp; sp == nil {
			delete(f.want, n)
		}
	}
}

func (f *forgetter) Step(context.Context) error {
	f.Stale.Run()
	return nil
}

func (f *forgetter) Next() time.Time { return f.Stale.Due() }

// step lets the worker take what was put and do what is due.
func (f *forgetter) step(c k8s.Changes) {
	f.In.Put(&k8s.Model{}, c)
	f.NotUntil = time.Time{}
	f.Round(context.Background(), f)
}

// What a first scan finds of pings that lead to an address of the node is nkp's, from before its start, only if nkp answers pings.
func TestForgetsPingsOfOthers(t *testing.T) {
	for _, answers := range []bool{false, true} {
		f := newForgetter(func(o *Options) { o.AnswerPing = answers })
		scanned := false
		f.Stale.Forget = func(stale func(*dpctl.Connection) bool) (int, error) {
			scanned = true
			if forgets := stale(&dpctl.Connection{
				Protocol: conntrack.Ping,
				Frontend: netip.MustParseAddrPort("192.0.2.1:0"), Endpoint: netip.MustParseAddrPort("127.0.0.1:0"),
			}); forgets != answers {
				t.Errorf("pings are answered: %v; translated ping is deleted: %v", answers, forgets)
			}
			return 0, nil
		}
		sp := &k8s.ServicePort{
			Name:      k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: "a"}, Protocol: "TCP", Family: k8s.IPv4},
			Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.MustParseAddr("40.0.0.1"), Port: 80}},
		}
		if f.step(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}}); !scanned {
			t.Error("no scan")
		}
	}
}

// Connections that could not be deleted are tried again without a further change, and by what is served then; once they are
// deleted, nothing is left to try.
func TestForgetAgain(t *testing.T) { synctest.Test(t, testForgetAgain) }

func testForgetAgain(t *testing.T) {
	f := newForgetter()
	failures, tries := 3, 0
	var last func(*dpctl.Connection) bool
	f.Stale.Forget = func(stale func(*dpctl.Connection) bool) (int, error) {
		last, tries = stale, tries+1
		if tries <= failures {
			return 1, errors.New("interrupted")
		}
		return 1, nil
	}
	vip := netip.MustParseAddrPort("40.0.0.1:53")
	gone, left := netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.2:53")
	udp := func(name string, serving ...netip.AddrPort) *k8s.ServicePort {
		return &k8s.ServicePort{
			Name:      k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: name}, Protocol: "UDP", Family: k8s.IPv4},
			Frontends: []k8s.Frontend{{Type: k8s.ExternalIP, Address: vip.Addr(), Port: vip.Port(), Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}, Serving: serving,
		}
	}
	a, b := udp("a", gone, left), udp("b", left)
	f.step(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{a.Name: a}})
	if tries != 1 || f.status.LastForgetError == "" {
		t.Errorf("%d tries, status %+v", tries, f.status)
	}
	if at := f.Next(); at.IsZero() || time.Until(at) > 2*dataplane.RetryFirst {
		t.Errorf("the next try is at %v", at)
	}
	f.step(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{a.Name: nil, b.Name: b}})
	if tries != 1 {
		t.Error("tried again without a pause")
	}
	for range failures {
		f.Stale.next = time.Now().Add(-time.Second)
		f.step(k8s.Changes{})
	}
	forgets := func(endpoint netip.AddrPort) bool {
		return last(&dpctl.Connection{Protocol: "UDP", Frontend: vip, Endpoint: endpoint})
	}
	if tries != failures+1 || !forgets(gone) || forgets(left) {
		t.Errorf("%d tries; the frontend has moved: an endpoint that is gone stays %t, the new one goes %t", tries, !forgets(gone), forgets(left))
	}
	if f.status.LastForgetError != "" || f.status.Forgotten != failures+1 || len(f.Stale.waiting) > 0 {
		t.Errorf("afterwards: %+v, %d are left", f.status, len(f.Stale.waiting))
	}
	f.step(k8s.Changes{})
	if tries != failures+1 {
		t.Error("tried again with nothing to do")
	}
}

// While connections cannot be deleted, what is noted does not grow without bound.
func TestStaleBound(t *testing.T) {
	f := newForgetter()
	for i := range maxStale + 10 {
		f.Stale.Note(k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: fmt.Sprint(i)}, Protocol: "UDP", Family: k8s.IPv4}, nil, nil)
	}
	if n := len(f.Stale.waiting); n != maxStale {
		t.Errorf("%d Service ports are noted, want at most %d", n, maxStale)
	}
}

// A deletion that ends with nkp is no failure.
func TestForgettingEndsWithNkp(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{{fmt.Errorf("listing: %w", context.Canceled), ""}, {errors.New("no"), "no"}} {
		f := newForgetter()
		f.Stale.Forget = func(func(*dpctl.Connection) bool) (int, error) { return 0, tc.err }
		f.Stale.waiting[k8s.PortName{}] = staleUDP{}
		if f.Stale.Run(); f.status.LastForgetError != tc.want {
			t.Errorf("%v: %q", tc.err, f.status.LastForgetError)
		}
	}
}

// Removals in a row share scans of the kernel's table: while scans take long, every second round at most has one, and the last removal
// is seen to.
func TestRemovalsShareScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const scan, round, rounds = 100 * time.Millisecond, 10 * time.Millisecond, 100
		f := newForgetter()
		scans := 0
		var closes func(*dpctl.Connection) bool
		f.Stale.Forget = func(stale func(*dpctl.Connection) bool) (int, error) {
			scans, closes = scans+1, stale
			time.Sleep(scan)
			return 0, nil
		}
		name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: "web"}, Protocol: "TCP", Family: k8s.IPv4}
		vip := netip.MustParseAddrPort("40.0.0.1:80")
		at := func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), 80)
		}
		port := func(from int) *k8s.ServicePort {
			sp := &k8s.ServicePort{Name: name, Removed: &k8s.Removed{},
				Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: vip.Addr(), Port: vip.Port(), Policy: k8s.Cluster}}}
			for i := from; i <= rounds; i++ {
				sp.Serving = append(sp.Serving, at(i))
			}
			return sp
		}
		f.step(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: port(0)}, Node: true})
		f.InStep(0, func(*FamilyStatus) {})
		if f.status.closing != "" {
			t.Errorf("nothing is removed: %q", f.status.closing)
		}
		begun := time.Now()
		scans = 0
		for i := range rounds {
			f.step(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: port(1 + i)}})
			time.Sleep(round)
		}
		took := time.Since(begun)
		if most := 1 + int(took/(2*scan)); scans > most || scans < 2 {
			t.Errorf("%d scans in %v, want %d at most", scans, took, most)
		}
		if f.InStep(0, func(*FamilyStatus) {}); f.status.closing != "IPv4: connections to removed endpoints of 1 Service port are still to be deleted" {
			t.Errorf("before the last scan: %q", f.status.closing)
		}
		time.Sleep(time.Until(f.Stale.Due()))
		f.step(k8s.Changes{Node: true})
		if f.InStep(0, func(*FamilyStatus) {}); f.status.closing != "" {
			t.Errorf("after the last scan: %q", f.status.closing)
		}
		c := dpctl.Connection{Protocol: "TCP", Frontend: vip, Endpoint: at(rounds - 1)}
		if !closes(&c) || !f.Stale.Due().IsZero() {
			t.Errorf("the last removal is left; the next scan is due %v", f.Stale.Due())
		}
		if c.Endpoint = at(rounds); closes(&c) {
			t.Error("an endpoint that stays is taken for removed")
		}
	})
}

// Stale UDP connections are deleted at once, also while a scan for removed endpoints alone would wait.
func TestStaleUDPDoesNotRest(t *testing.T) {
	f := newForgetter()
	scans := 0
	f.Stale.Forget = func(func(*dpctl.Connection) bool) (int, error) { scans++; return 0, nil }
	f.Stale.rested = time.Now().Add(time.Hour)
	f.Stale.waiting[k8s.PortName{}] = staleUDP{}
	if f.Stale.Run(); scans != 1 || len(f.Stale.waiting) > 0 {
		t.Errorf("%d scans, %d Service ports wait", scans, len(f.Stale.waiting))
	}
}
