package windows

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// The bodies for the example of the walk through kube-proxy's Windows mode are those that it shows: three pods behind
// 10.99.234.145:80, source VIP 100.244.206.66.
func TestWhoamiBodies(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	loadWhoami(t, b.tracker)
	b.hns.AddPod(b.network, "028abaed-7ff6-4fdc-992c-d3b004936be0", "39bd4d8e_Calico", "0E-2A-64-f4-ce-44", "100.244.206.68")
	b.hns.AddPod(b.network, "e84bad42-a6ee-40a8-8145-c9f084654774", "bc613b58_Calico", "0E-2A-64-f4-ce-45", "100.244.206.69")
	b.hns.AddPod(b.network, "77c53bac-a359-45cc-a663-541344ee505a", "62d2b2d0_Calico", "0E-2A-64-f4-ce-46", "100.244.206.70")
	calls := b.good()

	want := map[string]string{
		"HcnCreateLoadBalancer": `{"HostComputeEndpoints":["028abaed-7ff6-4fdc-992c-d3b004936be0","e84bad42-a6ee-40a8-8145-c9f084654774","77c53bac-a359-45cc-a663-541344ee505a"],` +
			`"SourceVIP":"100.244.206.66","FrontendVIPs":["10.99.234.145"],"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80}],` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`,
		"HcnCreateEndpoint": `{"HostComputeNetwork":"` + b.network + `","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.20.30.11"}}],` +
			`"IpConfigurations":[{"IpAddress":"10.99.234.145"}],"MacAddress":"08:00:27:09:de:92","Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}`,
	}
	for _, c := range calls {
		body := c.Args[len(c.Args)-1]
		if w, ok := want[c.Func]; ok {
			if body != w {
				t.Errorf("%s\n got %s\nwant %s", c.Func, body, w)
			}
			delete(want, c.Func)
		}
	}
	for fn := range want {
		t.Errorf("%s was not called", fn)
	}
}

// The same objects without an HNS, each time: what nkp plan -o hcn prints anywhere.
func TestPlanOffline(t *testing.T) {
	tracker := k8s.NewTracker(k8s.Options{NodeName: nodeName})
	loadWhoami(t, tracker)
	model, _ := tracker.Flush()
	for range 2 {
		text, warnings, err := PlanOffline(model, Options{SourceVIP: netip.MustParseAddr(sourceVIP), HostMAC: hostMAC1}, nil)
		var got plan.Text
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || len(warnings) > 0 || got.NetworkType != hns.NetworkOverlay || len(got.LoadBalancers) != 1 || len(got.Endpoints) != 2 ||
			got.Unsupported == nil {
			t.Fatalf("%v, warnings %q:\n%s", err, warnings, text)
		}
		l := got.LoadBalancers[0]
		if l.SourceVIP != sourceVIP || l.FrontendVIPs[0] != "10.99.234.145" ||
			l.PortMappings[0] != (hns.PortMapping{Protocol: 6, InternalPort: 8080, ExternalPort: 80}) ||
			strings.Join(l.HostComputeEndpoints, " ") != "100.244.206.68 100.244.206.69 100.244.206.70" {
			t.Errorf("unexpected load balancer: %+v", l)
		}
	}
}

// A pod elsewhere is the cluster's if a Node has its address in its range; what only the node can tell is said.
func TestPlanOfflineElsewhere(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	model, _ := b.tracker.Flush()
	opts := Options{SourceVIP: netip.MustParseAddr(sourceVIP), ForwardHealthCheckVIP: true, RootEndpointName: "cbr0"}
	for _, c := range []struct {
		remote         []hns.RemoteSubnet
		sourceVIP, via string
		warnings       []string
	}{
		{nil, nodeIP, nodeIP, []string{"--node-mac", "100.244.1.1: taken for addresses outside", "endpoint cbr0"}},
		{[]hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("100.244.1.0/24"), Provider: netip.MustParseAddr(otherNode)}},
			sourceVIP, otherNode, []string{"--node-mac", "endpoint cbr0"}},
	} {
		text, warnings, err := PlanOffline(model, opts, c.remote)
		if err != nil || len(warnings) != len(c.warnings) {
			t.Fatalf("warnings %q, %v", warnings, err)
		}
		for i, w := range c.warnings {
			if !strings.Contains(warnings[i], w) {
				t.Errorf("warning %q does not say %q", warnings[i], w)
			}
		}
		if !strings.Contains(string(text), `"SourceVIP": "`+c.sourceVIP+`"`) || !strings.Contains(string(text), `"ProviderAddress": "`+c.via+`"`) {
			t.Errorf("want source VIP %s, provider %s:\n%s", c.sourceVIP, c.via, text)
		}
	}
}

func loadWhoami(t *testing.T, tracker *k8s.Tracker) {
	t.Helper()
	m := manifest.Load("testdata/whoami-windows.yaml")
	must(t, m.Err())
	tracker.Apply(m.Objects)
}
