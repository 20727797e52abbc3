package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The versions at which features begin; the cases on both sides of every edge.
func TestFeaturesOf(t *testing.T) {
	for _, c := range []struct {
		v    Version
		want string // the features that matter, in order: V2 RemoteSubnet DSR IPv6 affinity modify
	}{
		{Version{7, 2}, "-"},
		{Version{9, 1}, "-"},
		{Version{9, 2}, "V2 RemoteSubnet"},
		{Version{9, 3}, "V2 RemoteSubnet DSR"},
		{Version{10, 0}, "V2 RemoteSubnet"},
		{Version{10, 1}, "V2 RemoteSubnet"},
		{Version{10, 2}, "V2 RemoteSubnet DSR"},
		{Version{11, 9}, "V2 RemoteSubnet DSR"},
		{Version{11, 10}, "V2 RemoteSubnet DSR IPv6"},
		{Version{12, 0}, "V2 RemoteSubnet DSR IPv6 affinity"},
		{Version{15, 4}, "V2 RemoteSubnet DSR IPv6 affinity"},
		{Version{15, 5}, "V2 RemoteSubnet DSR IPv6 affinity modify"},
		{Version{16, 0}, "V2 RemoteSubnet DSR IPv6 affinity modify"},
	} {
		f := FeaturesOf(c.v)
		var got []string
		for _, x := range []struct {
			name string
			has  bool
		}{{"V2", f.Api.V2}, {"RemoteSubnet", f.RemoteSubnet}, {"DSR", f.DSR}, {"IPv6", f.IPv6DualStack}, {"affinity", f.SessionAffinity}, {"modify", f.ModifyLoadbalancer}} {
			if x.has {
				got = append(got, x.name)
			}
		}
		if g := strings.Join(got, " "); g != c.want && !(g == "" && c.want == "-") {
			t.Errorf("HNS %s has %q, want %q", c.v, g, c.want)
		}
	}
}

// HNS may fail with S_OK and a record, with a code and no record, with a record that is no JSON, and with negative numbers.
func TestParseError(t *testing.T) {
	const record = `{"Success":false,"Error":"The specified port already exists. ","ErrorCode":2151350291}`
	for _, c := range []struct {
		hr     uint32
		record string
		want   string // "" for none
		code   uint32
	}{
		{0, "", "", 0},
		{1, "", "", 0}, // S_FALSE
		{0, record, "HcnX failed: The specified port already exists (HCN_E_PORT_ALREADY_EXISTS, 0x803b0013)", CodePortExists},
		{CodeFail, record, "HcnX failed: The specified port already exists (HCN_E_PORT_ALREADY_EXISTS, 0x803b0013)", CodePortExists},
		{CodeFail, "", "HcnX failed (E_FAIL, 0x80004005)", CodeFail},
		{0, "something else", "HcnX failed: something else", 0},
		{0x80070057, "{}", "HcnX failed (0x80070057)", 0x80070057},
		{0x80070005, "", "HcnX failed (E_ACCESSDENIED, 0x80070005): run nkp as a service, in a HostProcess container as SYSTEM, or from an elevated prompt", 0x80070005},
		{0x800706ba, "", "HcnX failed (RPC_S_SERVER_UNAVAILABLE, 0x800706ba): the Host Network Service does not run: Start-Service hns (Get-Service hns, and the event log of Hyper-V-VmSwitch, say why not)", 0},
		{0, `{"Error":"x","ErrorCode":-2143617005}`, "HcnX failed: x (HCN_E_PORT_ALREADY_EXISTS, 0x803b0013)", CodePortExists},
	} {
		err := ParseError("HcnX", c.hr, c.record)
		if c.want == "" {
			if err != nil {
				t.Errorf("%#x %q: %v, want no error", c.hr, c.record, err)
			}
			continue
		}
		if err == nil || err.Error() != c.want || c.code != 0 && !HasCode(fmt.Errorf("wrapped: %w", err), c.code) {
			t.Errorf("%#x %q:\n got %v\nwant %s", c.hr, c.record, err, c.want)
		}
	}
	for _, code := range []uint32{CodeElementNotFound, CodeEndpointNotFound, CodeNetworkNotFound, 0x490} {
		if !IsNotFound(&Error{Code: code}) {
			t.Errorf("%#x is not taken for not found", code)
		}
	}
	if IsNotFound(errors.New("not found")) || IsNotFound(nil) || IsNotFound(&Error{Code: CodeFail}) {
		t.Error("anything is taken for not found")
	}
}

// The node of an address: the longest prefix, a node's own address, none.
func TestProvider(t *testing.T) {
	n := Network{RemoteSubnets: ParseRemoteSubnets([]Policy{
		{Type: PolicyRemoteSubnetRoute, Settings: json.RawMessage(`{"DestinationPrefix":"10.244.0.0/16","ProviderAddress":"192.168.1.1"}`)},
		{Type: PolicyRemoteSubnetRoute, Settings: json.RawMessage(`{"DestinationPrefix":"10.244.2.0/24","ProviderAddress":"192.168.1.2","IsolationId":4096}`)},
		{Type: PolicyRemoteSubnetRoute, Settings: json.RawMessage(`{"DestinationPrefix":"nonsense","ProviderAddress":"192.168.1.3"}`)},
		{Type: "VxlanPort", Settings: json.RawMessage(`{"Port":4789}`)},
	})}
	for addr, want := range map[string]string{"10.244.1.1": "192.168.1.1", "10.244.2.1": "192.168.1.2", "192.168.1.2": "192.168.1.2", "8.8.8.8": "invalid IP", "192.168.1.3": "invalid IP"} {
		if got := n.Provider(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("the node of %s is %s, want %s", addr, got, want)
		}
	}
}

// The whole body is compared; order and case of endpoint ids, id and schema are not.
func TestSameLoadBalancer(t *testing.T) {
	base := func() *LoadBalancer {
		return &LoadBalancer{HostComputeEndpoints: []string{"aa", "bb"}, SourceVIP: "1.1.1.1", FrontendVIPs: []string{"2.2.2.2"},
			PortMappings: []PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 2}}, SchemaVersion: Schema2}
	}
	same := base()
	same.ID, same.SchemaVersion, same.HostComputeEndpoints = "x", SchemaVersion{2, 16}, []string{"BB", "{AA}"}
	if !SameLoadBalancer(base(), same) {
		t.Error("order, case, id and schema count")
	}
	for name, change := range map[string]func(*LoadBalancer){
		"endpoints":    func(l *LoadBalancer) { l.HostComputeEndpoints = []string{"aa", "cc"} },
		"fewer":        func(l *LoadBalancer) { l.HostComputeEndpoints = []string{"aa"} },
		"source VIP":   func(l *LoadBalancer) { l.SourceVIP = "" },
		"frontend":     func(l *LoadBalancer) { l.FrontendVIPs = nil },
		"flags":        func(l *LoadBalancer) { l.Flags = LoadBalancerDSR },
		"distribution": func(l *LoadBalancer) { l.PortMappings[0].DistributionType = DistributionSourceIP },
		"port":         func(l *LoadBalancer) { l.PortMappings[0].InternalPort = 9 },
		"no mapping":   func(l *LoadBalancer) { l.PortMappings = nil },
	} {
		l := base()
		change(l)
		if SameLoadBalancer(base(), l) {
			t.Errorf("%s does not count", name)
		}
	}
}

// States are read from the list of HNS's first API: ids in upper case, other fields ignored, a State that is not there is 0.
func TestPolicyListStates(t *testing.T) {
	var list PolicyLists
	const text = `{"Success":true,"Output":[{"ID":"0A-B","State":2,"Version":38654705666,"Policies":[{"Type":"ELB"}]},{"ID":"{0C}","State":4},{"ID":"0d"}]}`
	if err := parseV1("HNSCall GET /policylists", text, &list); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(list.States()); got != "map[0a-b:2 0c:4 0d:0]" {
		t.Errorf("States %s", got)
	}
	for text, want := range map[string]string{
		`{"Success":false,"Error":"Not found.","ErrorCode":2147943568}`: "x failed: Not found (ERROR_NOT_FOUND, 0x80070490)",
		"": "x failed: the answer does not parse",
		`{"Success":true,"Output":{"State":"2"}}`: "x failed: the answer does not parse",
	} {
		if err := parseV1("x", text, &list); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
