package agent

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
)

// An endpoint is in force if any frontend may lead there; why not, and for whom not, is said in the words of the policy that
// counts.
func TestEndpointInfo(t *testing.T) {
	here := k8s.EndpointState{Local: true, InCluster: true, InLocal: true}
	away := k8s.EndpointState{Node: "node-2", InCluster: true, WhyLocal: "on node-2"}
	sick := k8s.EndpointState{Node: "node-2", Why: "not ready", WhyLocal: "on node-2"}
	other := k8s.EndpointState{Local: true, InLocal: true, Why: "for zone b (topology hints)"}
	for _, x := range []struct {
		name           string
		e              k8s.EndpointState
		cluster, local bool
		inForce        bool
		why            string
	}{
		{"here", here, true, true, true, ""},
		{"away, policy Cluster", away, true, false, true, ""},
		{"away, both policies", away, true, true, true, "not for policy Local: on node-2"},
		{"away, policy Local", away, false, true, false, "on node-2"},
		{"sick, policy Cluster", sick, true, false, false, "not ready"},
		{"sick, both policies", sick, true, true, false, "not ready"},
		{"sick, policy Local", sick, false, true, false, "on node-2"},
		{"of another zone, policy Cluster", other, true, false, false, "for zone b (topology hints)"},
		{"of another zone, both policies", other, true, true, true, "for policy Local only: for zone b (topology hints)"},
		{"of another zone, policy Local", other, false, true, true, ""},
	} {
		if got := endpointInfo(&x.e, x.cluster, x.local); got.InForce != x.inForce || got.Why != x.why {
			t.Errorf("%s: in force %v, %q; want %v, %q", x.name, got.InForce, got.Why, x.inForce, x.why)
		}
	}
}

// What a Service has without being served there stands among its frontends, with the reason; so do the clients that may use
// them. Lists are not null.
func TestFrontendInfo(t *testing.T) {
	vip := netip.MustParseAddr("50.0.0.1")
	sp := &k8s.ServicePort{Frontends: []k8s.Frontend{
		{Type: k8s.ClusterIP, Address: netip.MustParseAddr("40.0.0.1"), Port: 80, Policy: k8s.Cluster},
		{Type: k8s.LoadBalancer, Address: vip, Port: 80, Policy: k8s.Local, SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
	}}
	unserved := []k8s.NotServed{{Type: k8s.LoadBalancer, Addr: netip.AddrPortFrom(vip.Next(), 80), Why: "ipMode Proxy"},
		{Type: k8s.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30080), Why: "another proxy serves it"}}
	got, err := json.Marshal(describe(sp, nil, unserved).Frontends)
	must(t, err)
	const want = `[{"type":"ClusterIP","address":"40.0.0.1","port":80,"policy":"Cluster","sourceRanges":[]},` +
		`{"type":"LoadBalancer","address":"50.0.0.1","port":80,"policy":"Local","sourceRanges":["198.51.100.0/24"]},` +
		`{"type":"LoadBalancer","address":"50.0.0.2","port":80,"policy":"","sourceRanges":[],"notServed":"ipMode Proxy"},` +
		`{"type":"NodePort","address":"","port":30080,"policy":"","sourceRanges":[],"notServed":"another proxy serves it"}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEmptyProblems(t *testing.T) {
	one := []k8s.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}}
	frontend := func(typ k8s.FrontendType, p k8s.Policy, when k8s.WhenEmpty) k8s.Frontend {
		return k8s.Frontend{Type: typ, Address: netip.MustParseAddr("40.0.0.1"), Port: 80, Policy: p, WhenEmpty: when}
	}
	for _, x := range []struct {
		name string
		sp   k8s.ServicePort
		want []string
		hns  []string // on Windows
	}{
		{"served", k8s.ServicePort{ClusterEndpoints: one, Frontends: []k8s.Frontend{frontend(k8s.ClusterIP, k8s.Cluster, k8s.Reject)}}, nil, nil},
		{"no endpoint, two frontends", k8s.ServicePort{Frontends: []k8s.Frontend{
			frontend(k8s.ClusterIP, k8s.Cluster, k8s.Reject), frontend(k8s.ExternalIP, k8s.Local, k8s.Reject)}},
			[]string{"no endpoint is in force: new connections are refused: none is ready"},
			[]string{"no endpoint is in force: HNS has no load balancer, and new connections are neither refused nor dropped: none is ready"}},
		{"none here", k8s.ServicePort{ClusterEndpoints: one, Frontends: []k8s.Frontend{
			frontend(k8s.ClusterIP, k8s.Local, k8s.Drop), frontend(k8s.ExternalIP, k8s.Local, k8s.Drop)}},
			[]string{"no endpoint on this node: new connections to ClusterIP 40.0.0.1:80 (policy Local) are dropped",
				"no endpoint on this node: new connections to ExternalIP 40.0.0.1:80 (policy Local) are dropped, but for those of this node and its pods"},
			[]string{"no endpoint on this node: new connections to ClusterIP 40.0.0.1:80 (policy Local) are not dropped, because HNS cannot do that",
				"no endpoint on this node: new connections to ExternalIP 40.0.0.1:80 (policy Local) are not dropped, because HNS cannot do that"}},
		{"shadowed", k8s.ServicePort{Frontends: []k8s.Frontend{{Type: k8s.ExternalIP, ShadowedBy: "default/other"}}}, nil, nil},
	} {
		for by, want := range map[mode.Mode][]string{mode.OVS: x.want, mode.Windows: x.hns} {
			if got := emptyProblems(by, &x.sp, func() string { return "none is ready" }); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, want %q", x.name, by, got, want)
			}
		}
	}
}

// An answer about very many frontends and endpoints shows some of each Service port, and counts the others.
func TestListedAreBounded(t *testing.T) {
	r, listed, all := room(maxListed), 0, 0
	for range 1000 {
		s := api.ServiceInfo{Frontends: make([]api.FrontendInfo, 1000), Endpoints: make([]api.EndpointInfo, 1000)}
		r.take(&s)
		listed += len(s.Frontends) + len(s.Endpoints)
		all += len(s.Frontends) + len(s.Endpoints) + s.MoreFrontends + s.MoreEndpoints
		if len(s.Frontends) < listedOfEach || len(s.Endpoints) < listedOfEach || cap(s.Frontends) > 2*len(s.Frontends) {
			t.Fatalf("%d frontends (%d in memory) and %d endpoints are listed", len(s.Frontends), cap(s.Frontends), len(s.Endpoints))
		}
	}
	if most := maxListed + 2*1000*listedOfEach; listed > most || all != 2_000_000 {
		t.Errorf("%d of %d are listed, at most %d should be", listed, all, most)
	}
}
