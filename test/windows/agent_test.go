//go:build linux

package windows

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nkp "github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/hnsfake"

	"github.com/nkp-proxy/nkp/test/windows/winebed"
)

// The node of the tests.
const (
	nodeName  = "winw1"
	nodeIP    = "10.20.30.11"
	otherNode = "10.20.30.12"
	hostMAC   = "08:00:27:09:de:92"
	sourceVIP = "100.244.206.66"
	patience  = 60 * time.Second
)

var newest = hns.Version{Major: 15, Minor: 5}

var routes = map[string]string{"100.244.1.0/24": otherNode, "100.244.2.0/24": "10.20.30.13"}

// host is a Windows host with manifests and, while it runs, an agent.
type host struct {
	*winebed.Bed
	t       *testing.T
	network string
	overlay bool
	agent   *winebed.Process
	flags   []string
	service bool // the agent runs as a service
}

func newHost(t *testing.T, networkType string, v hns.Version, flags ...string) *host {
	t.Helper()
	h := &host{Bed: winebed.New(t, prefix, v), t: t, overlay: networkType == hns.NetworkOverlay, flags: flags}
	var r map[string]string
	if h.overlay {
		r = routes
	}
	h.network = h.HNS.AddNetwork("Calico", networkType, r)
	if err := os.Mkdir(h.Path("manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.write("node", "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\nstatus: {addresses: [{type: InternalIP, address: "+nodeIP+"}]}\n")
	if h.overlay {
		h.HNS.AddPod(h.network, "", "Calico_ep", "00-15-5d-00-00-01", sourceVIP)
	}
	return h
}

// write replaces a manifest; it is there at once as a whole.
func (h *host) write(name, text string) {
	h.t.Helper()
	tmp := h.Path(name + ".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(h.Path("manifests"), name+".yaml")); err != nil {
		h.t.Fatal(err)
	}
}

// args gives a command line of winplane.
func (h *host) args(command string) []string {
	args := []string{command, "-manifests", winebed.Windows(h.Path("manifests")), "-hostname-override", nodeName, "-network-name", "Calico",
		"-state-file", winebed.Windows(h.Path(`state/hns.json`)), "-status", winebed.Windows(h.Path("status.json")), "-host-mac", hostMAC,
		"-min-sync-period", "100ms"}
	if h.overlay {
		args = append(args, "-source-vip", sourceVIP)
	}
	return append(args, h.flags...)
}

// start starts the agent, and waits until it has synced.
func (h *host) start() {
	h.t.Helper()
	_ = os.Remove(h.Path("status.json"))
	h.agent = h.Start(winplane, h.args("run")...)
	h.until("the agent has synced", func() bool { return h.status().Syncs > 0 && h.status().Error == "" })
}

// status gives what the agent says; the zero Status if it has not said anything yet.
func (h *host) status() (s nkp.Status) {
	text, err := os.ReadFile(h.Path("status.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return s
}

// until waits for something.
func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || !h.service && h.agent.Ended() {
			var out string
			if !h.service {
				out = h.agent.Out.String()
			}
			h.t.Fatalf("%s: not within %v\nHNS has\n%s\nthe agent printed\n%s", what, patience, h.HNS.Dump(), out)
		}
	}
}

// has waits until HNS has a number of load balancers.
func (h *host) has(n int) {
	h.t.Helper()
	h.until("the load balancers", func() bool { return len(h.HNS.LoadBalancers()) == n })
}

// settled waits until two syncs in a row changed nothing.
func (h *host) settled() {
	h.t.Helper()
	var last string
	var since time.Time
	h.until("HNS has settled", func() bool {
		if d := h.HNS.Dump(); d != last || h.status().Busy {
			last, since = d, time.Now()
		}
		return time.Since(since) > 700*time.Millisecond
	})
}

// simple gives a ClusterIP Service on TCP 80 with endpoints on 8080 on the other node.
func simple(name, clusterIP string, endpoints ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: default}\n" +
		"spec: {type: ClusterIP, clusterIP: " + clusterIP + ", clusterIPs: [" + clusterIP + "], ipFamilies: [IPv4], ports: [{port: 80, protocol: TCP, targetPort: 8080}]}\n---\n" +
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name + "-1, namespace: default, labels: {kubernetes.io/service-name: " + name + "}}\n" +
		"addressType: IPv4\nports: [{name: \"\", port: 8080, protocol: TCP}]\nendpoints:\n")
	for _, e := range endpoints {
		b.WriteString("- {addresses: [" + e + "], nodeName: winw2, conditions: {ready: true}}\n")
	}
	return b.String()
}

// count counts calls of a function.
func count(calls []hnsfake.Call, fn string) int { return hnsfake.Count(calls, fn) }

// writes counts the calls that change something.
func writes(calls []hnsfake.Call) (n int) {
	for _, c := range calls {
		if strings.HasPrefix(c.Func, "HcnCreate") || strings.HasPrefix(c.Func, "HcnModify") || strings.HasPrefix(c.Func, "HcnDelete") {
			n++
		}
	}
	return n
}
