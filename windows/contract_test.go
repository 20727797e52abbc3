package windows

import (
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// What HNS refuses is reported for each try, as what it is about; until it is taken the plane is not in step, and says why.
func TestRefusal(t *testing.T) {
	var refused []dataplane.Refusal
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.Hooks.Refused = func(r dataplane.Refusal) { refused = append(refused, r) }
	})
	status := func() dataplane.Status {
		t.Helper()
		s, err := b.plane.Status(t.Context())
		must(t, err)
		return s
	}
	if s := status(); s.InStep || s.Why == "" {
		t.Errorf("before the first sync: %+v", s)
	}
	b.good()
	if s := status(); !s.InStep || s.Why != "" {
		t.Errorf("in step: %+v", s)
	}
	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 2, Code: hns.CodePortExists, Text: "taken"})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	for try := 1; try <= 2; try++ {
		b.sync()
		if len(refused) != try || refused[try-1].Port.String() != "default/web" || refused[try-1].Times != try || !strings.Contains(refused[try-1].Object, "10.99.0.1:80") ||
			!strings.Contains(refused[try-1].Reason, "HCN_E_PORT_ALREADY_EXISTS, 0x803b0013") ||
			!strings.Contains(refused[try-1].Reason, "probable holder") || !refused[try-1].RetryAt.After(b.clock) {
			t.Fatalf("try %d: refused %+v", try, refused)
		}
		if s := status(); s.InStep || !strings.Contains(s.Why, "does not take 1 object") || len(s.Refusals) != 1 || s.Refusals[0] != refused[try-1] {
			t.Errorf("try %d: %+v", try, s)
		}
		b.expire()
	}
	b.good()
	if s := status(); !s.InStep || len(s.Refusals) != 0 {
		t.Errorf("taken at last: %+v", s)
	}
	b.hns.Inject(hnsfake.Fault{Func: "HcnEnumerateLoadBalancers", Times: 1, Code: hns.CodeFail, Text: "busy"})
	b.sync()
	if s := status(); s.InStep || !strings.Contains(s.Why, "busy") {
		t.Errorf("a sync that failed, after one that went through: %+v", s)
	}
}

// A sync counts for the families of what it wrote.
func TestSyncedFamilies(t *testing.T) {
	var synced [][]k8s.Family
	b := newBed(t, hns.NetworkL2Bridge, newest, func(o *Options) {
		o.Hooks.Synced = func(s dataplane.Sync) { synced = append(synced, s.Families) }
	})
	b.good()
	synced = nil
	for _, x := range []struct {
		name, vip, endpoint string
		family              k8s.Family
	}{{"four", "10.99.0.1", "100.244.1.1", k8s.IPv4}, {"six", "fd00:99::1", "fd00:244::1", k8s.IPv6}} {
		b.simple(x.name, x.vip, x.endpoint)
		b.good()
		if len(synced) != 1 || !slices.Equal(synced[0], []k8s.Family{x.family}) {
			t.Errorf("%s: synced %v", x.name, synced)
		}
		synced = nil
	}
	b.good()
	if len(synced) != 0 {
		t.Errorf("nothing was written: synced %v", synced)
	}
}
