//go:build linux

package windows

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/wait"
	nkp "github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// The node of the tests.
const (
	nodeName  = "winw1"
	nodeIP    = "10.20.30.11"
	otherNode = "10.20.30.12"
	hostMAC   = "08:00:27:09:de:92"
	sourceVIP = "100.244.206.66"
)

var newest = hns.Version{Major: 15, Minor: 5}

var routes = map[string]string{"100.244.1.0/24": otherNode, "100.244.2.0/24": "10.20.30.13"}

// host is a Windows host with manifests and, while it runs, an agent.
type host struct {
	*winebed.Bed
	t       *testing.T
	network string
	overlay bool
	mac     string           // --node-mac; "": nkp finds it out
	pipe    string           // the agent's
	proxy   *winebed.Process // pipeproxy
	door    string           // where proxy listens
	agent   *winebed.Process
	flags   []string // further ones of run, diff and plan
	service bool     // the agent runs as a service
}

// pipes counts the pipes of this test binary.
var pipes atomic.Int64

func newHost(t *testing.T, networkType string, v hns.Version, flags ...string) *host {
	t.Helper()
	h := &host{Bed: winebed.New(t, prefix, v), t: t, overlay: networkType == hns.NetworkOverlay, mac: hostMAC, flags: flags}
	h.pipe = fmt.Sprintf(`\\.\pipe\nkp-test-%d`, pipes.Add(1))
	h.open()
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

// open lets the test talk to the agent's pipe.
func (h *host) open() {
	h.t.Helper()
	h.door = ""
	h.proxy = h.Start(pipeproxy, h.pipe)
	wait.NoError(h.t, "pipeproxy to listen", func() error {
		out := h.proxy.Out.String()
		if !strings.HasSuffix(out, "\n") {
			return fmt.Errorf("it printed %q", out)
		}
		h.door = strings.TrimSpace(out)
		return nil
	})
}

// onHNS returns flags that all commands have.
func (h *host) onHNS() []string {
	return []string{"--network-name", "Calico", "--hns-state-file", winebed.Windows(h.Path(`state/hns.json`)), "--socket", h.pipe}
}

// offline returns flags that say what should be in HNS.
func (h *host) offline() []string {
	args := []string{"--manifests", winebed.Windows(h.Path("manifests")), "--hostname-override", nodeName}
	if h.mac != "" {
		args = append(args, "--node-mac", h.mac)
	}
	if h.overlay {
		args = append(args, "--source-vip", sourceVIP)
	}
	return args
}

// args returns a command line of run.
func (h *host) args() []string {
	args := append([]string{"run"}, append(h.onHNS(), h.offline()...)...)
	return append(append(args, "--iptables-min-sync-period", "100ms", "--healthz-bind-address=", "--metrics-bind-address="), h.flags...)
}

// nkp runs another command of nkp.exe beside the agent, if there is one.
func (h *host) nkp(command string, flags ...string) (string, error) {
	h.t.Helper()
	return h.Run(nkpExe, append([]string{command}, flags...)...)
}

// start starts the agent, and waits until it has synced.
func (h *host) start() {
	h.t.Helper()
	h.agent = h.Start(nkpExe, h.args()...)
	h.greet()
	h.until("the agent has synced", func() bool { return h.status().Syncs > 0 && h.status().Error == "" })
}

// greet is the first client of a new agent, which waits in vain under Wine: the pipe's first instance, which the library keeps for
// itself, is closed to clients on Windows only.
func (h *host) greet() {
	h.t.Helper()
	first := http.Client{Timeout: 300 * time.Millisecond, Transport: asker.Transport}
	var last error
	defer func() {
		if h.t.Failed() {
			h.t.Logf("the last question: %v; pipeproxy printed\n%s", last, h.proxy.Out.Tail())
		}
	}()
	h.until("the agent's pipe is there", func() bool {
		res, err := h.ask(&first)
		if err == nil {
			res.Body.Close()
		}
		last = err
		return err == nil || os.IsTimeout(err)
	})
}

// ask asks the agent for its status. It starts pipeproxy again if that has ended: not every Go program survives in Wine, and this one
// is not under test.
func (h *host) ask(c *http.Client) (*http.Response, error) {
	h.t.Helper()
	if h.proxy.Ended() {
		h.t.Logf("pipeproxy has ended; another one. It printed\n%s", h.proxy.Out.Tail())
		h.open()
	}
	return c.Get("http://" + h.door + "/v1/status")
}

// asker does without kept connections: they would not outlive the agent.
var asker = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// status returns what the agent says; the zero Status if it does not answer.
func (h *host) status() nkp.Status {
	var s struct{ HNS nkp.Status }
	res, err := h.ask(&asker)
	if err != nil {
		return s.HNS
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil && res.StatusCode == http.StatusOK && (h.service || !h.agent.Ended()) {
		h.t.Fatal(err)
	}
	return s.HNS
}

// until waits for something.
func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	ended := false
	err := wait.Until(h.t.Context(), func() error {
		if ok() {
			return nil
		}
		if ended = !h.service && h.agent.Ended(); ended {
			return nil
		}
		return errors.New("it has not happened")
	})
	if err == nil && !ended {
		return
	}
	var out string
	if !h.service {
		out = h.agent.Out.String()
	}
	h.t.Fatalf("%s: %v; the agent has ended: %t\nHNS has\n%s\nthe agent printed\n%s", what, err, ended, h.HNS.Dump(), out)
}

// has waits until HNS has a number of load balancers.
func (h *host) has(n int) {
	h.t.Helper()
	h.until("the load balancers", func() bool { return len(h.HNS.LoadBalancers()) == n })
}

// settled waits until a sync has gone through that began after the last change, and HNS has all that is wanted.
func (h *host) settled() {
	h.t.Helper()
	h.until("HNS has settled", func() bool {
		s := h.status()
		return s.InStep && !s.Busy && !s.Begun.Before(s.Queued) && !s.Synced.Before(s.Begun)
	})
}

// simple returns a ClusterIP Service on TCP 80 with endpoints on 8080 on the other node.
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

// writes counts the calls that change something.
func writes(calls []hnsfake.Call) (n int) {
	for _, c := range calls {
		if strings.HasPrefix(c.Func, "HcnCreate") || strings.HasPrefix(c.Func, "HcnModify") || strings.HasPrefix(c.Func, "HcnDelete") {
			n++
		}
	}
	return n
}
