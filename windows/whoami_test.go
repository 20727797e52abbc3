package windows

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
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

// The same objects without an HNS: what nkp plan -o hcn prints anywhere.
func TestPlanOffline(t *testing.T) {
	tracker := k8s.NewTracker(k8s.Options{NodeName: nodeName})
	loadWhoami(t, tracker)
	model, _ := tracker.Flush()
	text, err := PlanOffline(model, Options{SourceVIP: netip.MustParseAddr(sourceVIP), HostMAC: hostMAC1})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		NetworkType   string
		Endpoints     []hns.Endpoint
		LoadBalancers []hns.LoadBalancer
		Unsupported   []any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.NetworkType != hns.NetworkOverlay || len(got.LoadBalancers) != 1 || len(got.Endpoints) != 2 || got.Unsupported == nil {
		t.Fatalf("unexpected plan:\n%s", text)
	}
	l := got.LoadBalancers[0]
	if l.SourceVIP != sourceVIP || l.FrontendVIPs[0] != "10.99.234.145" || l.PortMappings[0] != (hns.PortMapping{Protocol: 6, InternalPort: 8080, ExternalPort: 80}) ||
		strings.Join(l.HostComputeEndpoints, " ") != "100.244.206.68 100.244.206.69 100.244.206.70" {
		t.Errorf("unexpected load balancer: %+v", l)
	}
	again, err := PlanOffline(model, Options{SourceVIP: netip.MustParseAddr(sourceVIP), HostMAC: hostMAC1})
	if err != nil || string(again) != string(text) {
		t.Errorf("the plan is not the same twice: %v", err)
	}
}

func loadWhoami(t *testing.T, tracker *k8s.Tracker) {
	t.Helper()
	m := k8s.LoadManifests("testdata/whoami-windows.yaml")
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	tracker.Apply(m.Objects)
}
