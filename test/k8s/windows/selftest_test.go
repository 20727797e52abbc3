//go:build linux

package windows

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/selftest"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// nkp.exe hns-selftest through the DLLs: the report has what HNS stores differently, and nothing stays. It does not run beside an agent, which it
// finds among the processes, nor without rights.
func TestSelftest(t *testing.T) {
	b := winebed.New(t, prefix, newest)
	out, err := b.Run(nkpExe, "hns-selftest", "--network-type", "Overlay", "--adapter", "Ethernet 2")
	if err != nil || !strings.Contains(out, "0 refused, 0 stored differently") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
	b.HNS.SetEcho(func(kind string, o hnsfake.Object) {
		if kind == "LoadBalancer" && len(o) > 1 {
			o["SourceVIP"] = "198.18.0.99"
		}
	})
	out, err = b.Run(nkpExe, "hns-selftest", "-o", "json")
	var r selftest.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	altered := 0
	for _, o := range r.Objects {
		if o.Altered {
			altered++
		}
	}
	if err != nil || altered < 10 || r.HNS != newest || r.Windows == "" || len(b.HNS.LoadBalancers())+len(b.HNS.Endpoints())+b.HNS.OpenHandles() != 0 {
		t.Errorf("%v, %d load balancers are altered, %d handles are open; HNS has\n%s", err, altered, b.HNS.OpenHandles(), b.HNS.Dump())
	}
	if _, err := hnsfake.Replay([]byte(out)); err != nil {
		t.Errorf("the report cannot be replayed: %v", err)
	}

	b.HNS.Inject(hnsfake.Fault{Func: "HcnEnumerateNetworks", Times: -1, Code: 0x80070005, Text: "Access is denied."})
	out, err = b.Run(nkpExe, "hns-selftest")
	if err == nil || !strings.Contains(out, "elevated prompt") || strings.Count(out, "\n") != 1 {
		t.Errorf("without rights: %v\n%s", err, out)
	}
	b.HNS.Heal()

	h := newHost(t, hns.NetworkOverlay, newest)
	h.start()
	b.HNS.Calls()
	out, err = b.Run(nkpExe, "hns-selftest")
	if err == nil || !strings.Contains(out, "nkp.exe runs: this host is a node of a cluster") || writes(b.HNS.Calls()) != 0 {
		t.Errorf("beside an agent: %v\n%s", err, out)
	}
}

// HNS notifies nkp.exe of a network that is created again, which it then serves. That it does so at once is in package windows.
func TestRecreatedNetwork(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.write("web", simple("web", "10.99.3.1", "100.244.1.1"))
	h.start()
	h.has(1)
	h.until("notifications", func() bool { return h.status().Notifies })
	for _, restart := range []bool{false, true} {
		if restart {
			h.HNS.Disconnect() // HNS's service is restarted
			h.until("notifications again", func() bool { return h.status().Notifies })
		}
		h.HNS.DropLoadBalancer(h.HNS.LoadBalancers()[0].ID)
		h.HNS.RemoveNetwork(h.network)
		h.until("nkp waits for the network", func() bool { return strings.Contains(h.status().Error, "HNS has no network") })
		h.network = h.HNS.AddNetwork("Calico", hns.NetworkOverlay, routes)
		h.has(1)
	}
}

// What a first start meets: each is one line that says what to do, in the log and in status.
func TestFirstStart(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*host)
		want  string
	}{
		{"no rights", func(h *host) { h.fail("", 0x80070005, "Access is denied.") }, "E_ACCESSDENIED, 0x80070005): run nkp as a service, in a HostProcess container as SYSTEM, or from an elevated prompt"},
		{"HNS does not run", func(h *host) { h.fail("", 0x800706ba, "The RPC server is unavailable.") }, "the Host Network Service does not run: Start-Service hns"},
		{"wrong network", func(h *host) {
			h.HNS.RemoveNetwork(h.network)
			h.HNS.AddNetwork("flannel.4096", hns.NetworkOverlay, nil)
			h.HNS.AddNetwork("nat", "NAT", nil)
		}, `HNS has no network "Calico" (it has flannel.4096, nat): the CNI plugin makes it, or set --network-name`},
		{"too old", func(h *host) { h.HNS.SetVersion(hns.Version{Major: 7, Minor: 2}) }, "this Windows is too old: HNS 7.2 has no HCN V2 API"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, hns.NetworkOverlay, newest)
			c.setup(h)
			h.agent = h.Start(nkpExe, h.args()...)
			h.greet()
			h.until("status says why", func() bool { return strings.Contains(h.status().Error, c.want) })
			out := h.agent.Out.String()
			line := ""
			for l := range strings.SplitSeq(out, "\n") {
				if strings.Contains(l, strings.ReplaceAll(c.want, `"`, `\"`)) {
					line = l
				}
			}
			if line == "" {
				t.Errorf("the log has no such line:\n%s", out)
			}
			t.Log(line)
		})
	}
}

// fail makes HNS refuse a function; "": all.
func (h *host) fail(fn string, code uint32, text string) {
	h.HNS.Inject(hnsfake.Fault{Func: fn, Times: -1, Code: code, Text: text})
}
