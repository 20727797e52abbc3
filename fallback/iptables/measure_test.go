package iptables

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// Hooks are told of every run of iptables-restore, of every round that wrote something, and of what was refused or forgotten.
func TestMeasured(t *testing.T) {
	s := newStage(t)
	var rounds []bool // full?
	ok, failed, splits, forgot := 0, 0, 0, 0
	s.opts.Hooks.Synced = func(r dataplane.Sync) { rounds = append(rounds, r.Full) }
	s.opts.Hooks.Restored = func(r dataplane.Restore) {
		if r.Err != nil {
			failed++
		} else if ok++; r.Rules == 0 && r.Table == "" || r.Backend != "b" || r.Family != k8s.IPv4 {
			t.Errorf("a run of iptables-restore is told as %+v", r)
		}
	}
	s.opts.Hooks.Split = func(k8s.Family) { splits++ }
	s.opts.Hooks.Forgot = func(_ k8s.Family, n int, _ time.Duration) { forgot += n }
	s.worker.backend = "b"
	s.worker.Stale.Forget = func(func(*dpctl.Connection) bool) (int, error) { return 3, nil }
	name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "dns"}, Protocol: "UDP", Family: k8s.IPv4}
	put := func(endpoint string) {
		s.put(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: {
			Name: name, Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.MustParseAddr("40.0.0.1"), Port: 53, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}},
			ClusterEndpoints: []k8s.Endpoint{{Addr: netip.MustParseAddrPort(endpoint)}}, Serving: []netip.AddrPort{netip.MustParseAddrPort(endpoint)},
		}}})
		s.step()
	}
	put("10.0.0.1:53")
	if len(rounds) == 0 || !rounds[0] || ok == 0 || failed+splits != 0 || s.status.Programming.Changes != 1 {
		t.Fatalf("at the start: rounds %v, %d transactions, %d failed, %d split, %+v", rounds, ok, failed, splits, s.status.Programming)
	}
	rounds, ok, forgot = nil, 0, 0
	s.step()
	if len(rounds)+ok != 0 {
		t.Errorf("nothing to do: rounds %v, %d transactions", rounds, ok)
	}
	put("10.0.0.2:53")
	if len(rounds) == 0 || rounds[0] || ok == 0 || forgot != 3 || s.status.Programming.Changes != 2 {
		t.Errorf("a change: rounds %v, %d transactions, %d forgotten, %+v", rounds, ok, forgot, s.status.Programming)
	}
	if p := s.status.Programming; p.P50Milli <= 0 || p.P99Milli < p.P50Milli {
		t.Errorf("latencies %+v", p)
	}
	s.tables.refuse = func(line string) bool { return strings.Contains(line, "10.0.0.3:53") }
	put("10.0.0.3:53")
	if failed == 0 || splits == 0 {
		t.Errorf("a refused change: %d failed, %d split", failed, splits)
	}
}
