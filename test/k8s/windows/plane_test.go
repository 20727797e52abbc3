//go:build linux

package windows

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// The bodies of the example in the real calls: what hcsshim makes of them reaches HNS as it should.
func TestWhoami(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	text, err := os.ReadFile("../../../windows/testdata/whoami-windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	h.write("node", string(text))
	h.HNS.AddPod(h.network, "028abaed-7ff6-4fdc-992c-d3b004936be0", "39bd4d8e_Calico", "0E-2A-64-f4-ce-44", "100.244.206.68")
	h.HNS.AddPod(h.network, "e84bad42-a6ee-40a8-8145-c9f084654774", "bc613b58_Calico", "0E-2A-64-f4-ce-45", "100.244.206.69")
	h.HNS.AddPod(h.network, "77c53bac-a359-45cc-a663-541344ee505a", "62d2b2d0_Calico", "0E-2A-64-f4-ce-46", "100.244.206.70")
	h.start()
	h.has(1)
	const want = `{"HostComputeEndpoints":["028abaed-7ff6-4fdc-992c-d3b004936be0","e84bad42-a6ee-40a8-8145-c9f084654774","77c53bac-a359-45cc-a663-541344ee505a"],` +
		`"SourceVIP":"100.244.206.66","FrontendVIPs":["10.99.234.145"],"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80}],` +
		`"SchemaVersion":{"Major":2,"Minor":0}}`
	for _, c := range h.HNS.Calls() {
		if c.Func == "HcnCreateLoadBalancer" && c.Args[0] != want {
			t.Errorf("got  %s\nwant %s", c.Args[0], want)
		}
	}
	if d := h.HNS.Dump(); !strings.Contains(d, "endpoint 10.99.234.145 mac=08:00:27:09:de:92 node=10.20.30.11\n") {
		t.Errorf("the Service's address has no remote endpoint:\n%s", d)
	}
	if s := h.status(); s.HNSVersion != "15.5" || !s.Features.Api.V2 || !s.Features.ModifyLoadbalancer || s.NetworkType != hns.NetworkOverlay {
		t.Errorf("status %+v", s)
	}
}

// The calls that a node of 200 Services with 5 endpoints each takes, counted at the DLLs: hcsshim makes those that the
// fake of package windows counts. What an idle node and a restart take is there.
func TestCallBudgets(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	services := many(200, 5)
	h.write("all", strings.Join(services[1:], "---\n"))
	h.write("one", services[0])
	h.start()
	h.has(200)
	h.settled()
	fresh := h.HNS.Calls()
	t.Logf("fresh start: %d calls", len(fresh))
	if len(fresh) > 6622 {
		t.Errorf("a fresh start takes %d calls, want at most 6622", len(fresh))
	}
	var change []hnsfake.Call
	last := "100.244.1.5"
	for _, next := range []string{"100.244.1.252", "100.244.1.253"} { // the regular check may fall into one of the two
		h.write("one", simple("web-000", "10.99.0.1", "100.244.1.1", "100.244.1.2", "100.244.1.3", "100.244.1.4", next))
		h.until("the change", func() bool {
			d := h.HNS.Dump()
			return strings.Contains(d, "endpoint "+next+" ") && !strings.Contains(d, "endpoint "+last+" ")
		})
		h.settled()
		last, change = next, h.HNS.Calls()
		t.Logf("one endpoint change: %d calls, %d of them writes", len(change), writes(change))
		if len(change) <= 11 {
			break
		}
	}
	if len(change) > 11 || writes(change) != 3 {
		t.Errorf("one endpoint change takes %d calls, %d of them writes; want at most 11, 3 writes: %v", len(change), writes(change), change)
	}
}

// many returns n Services with k endpoints each on other nodes.
func many(n, k int) (docs []string) {
	for i := range n {
		var eps []string
		for j := range k {
			x := i*k + j
			eps = append(eps, fmt.Sprintf("100.244.%d.%d", 1+x/250%2+2*(x/500), 1+x%250))
		}
		docs = append(docs, simple(fmt.Sprintf("web-%03d", i), fmt.Sprintf("10.99.%d.%d", i/250, 1+i%250), eps...))
	}
	return docs
}

// What HNS refuses through the DLLs is reported with its code, and an object that vanishes between enumeration and
// opening, which fails the lists of hcsshim, is made again. What else goes wrong with HNS is in package windows.
func TestFaults(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest, "--iptables-sync-period", "1s")
	h.write("all", strings.Join(many(20, 2), "---\n"))
	h.start()
	h.has(20)
	h.settled()
	before := h.HNS.Dump()
	h.agent.Kill()
	victim := h.HNS.LoadBalancers()[7].ID
	h.HNS.Inject(hnsfake.Fault{Func: "HcnOpenLoadBalancer", Times: 1, Do: func() { h.HNS.DropLoadBalancer(victim) },
		Match: func(args []string) bool { return hns.SameID(args[0], victim) }})
	h.start()
	h.until("the vanished load balancer is back", func() bool { return h.HNS.Dump() == before })

	h.HNS.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 2, Code: hns.CodePortExists, Text: "The specified port already exists."})
	h.write("new", simple("new", "10.99.5.1", "100.244.1.1"))
	h.until("the refusal is reported", func() bool { return len(h.status().Failures) == 1 })
	if f := h.status().Failures[0]; f.Service != "default/new" || !strings.Contains(f.Error, "HCN_E_PORT_ALREADY_EXISTS, 0x803b0013") {
		t.Errorf("failure %+v", f)
	}
	h.has(21)
}
