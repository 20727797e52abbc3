//go:build linux

package windows

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	nkp "github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// What nkp.exe does with nothing said but the Services and the network: the pipe, the files, the source VIP, the metrics.
func TestDefaults(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.HNS.AddNetwork("other", hns.NetworkL2Bridge, nil)
	h.agent = h.Start(nkpExe, "run", "--manifests", winebed.Windows(h.Path("manifests")), "--hostname-override", nodeName,
		"--node-mac", hostMAC, "--network-name", "Calico", "--healthz-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0")
	h.pipe = `\\.\pipe\nkp`
	h.open()
	h.greet()
	h.has(1)
	if got := h.HNS.LoadBalancers()[0].SourceVIP; got != sourceVIP {
		t.Errorf("source VIP %s, want that of Calico_ep", got)
	}
	h.expect(0, "status", nil, "network Calico (Overlay)")
	h.expect(0, "diff", nil)
	if _, mode := h.get("metrics", "/proxyMode"); mode != "kernelspace" {
		t.Errorf("/proxyMode says %q", mode)
	}
	h.settled()
	code, text := h.get("metrics", "/metrics") // those with kube-proxy's names are in TestMetricsBesideKubeProxy
	for _, want := range []string{`nkp_hns_changes_total{operation="created"} 3`, `nkp_hns_syncs_total{result="ok"}`,
		`nkp_hns_calls_total{`, `nkp_hns_objects{`} {
		if code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("/metrics (%d) has no %s:\n%s", code, want, text)
		}
	}
	for _, file := range []string{"hns.json", "mode"} {
		if _, err := os.Stat(prefix.DriveC("ProgramData", "nkp", file)); err != nil {
			t.Error(err)
		}
	}
	h.agent.Kill()
	h.expect(0, "cleanup", nil, "removed 3 objects")
	h.expect(0, "run", []string{"--help"}, `\\.\pipe\nkp`, `%ProgramData%\nkp\hns.json`)
	h.expect(0, "--help", nil, "windows-service")
}

// served finds where the agent says that it serves something.
var served = regexp.MustCompile(`msg="serving ([^"]*)" address=(\S+)`)

// get asks one of the agent's servers, named as in its log, for a page.
func (h *host) get(server, path string) (status int, body string) {
	h.t.Helper()
	var at string
	h.until("it serves "+server, func() bool {
		for _, m := range served.FindAllStringSubmatch(h.agent.Out.String(), -1) {
			if m[1] == server {
				at = m[2]
			}
		}
		return at != ""
	})
	res, err := asker.Get("http://" + at + path)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// health asks /healthz of the running agent.
func (h *host) health() (status int, body struct {
	Healthy      bool
	NodeEligible bool
}) {
	h.t.Helper()
	status, text := h.get("/healthz and /livez", "/healthz")
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		h.t.Fatal(err)
	}
	return status, body
}

// Dynamic ports that run out are seen: of a range for 10 blocks of 64 ports netsh reports one as reserved, and this test listens in another.
func TestFewPortBlocks(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:61600")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := prefix.Install(built(t, "netsh"), "netsh.exe"); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, hns.NetworkOverlay, newest, "--metrics-bind-address", "127.0.0.1:0")
	prints := func(what, text string) {
		file := prefix.DriveC("netsh-" + what)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(file) })
	}
	const exclusions = "\r\nProtocol %s Port Exclusion Ranges\r\n\r\nStart Port    End Port      \r\n----------    --------      \r\n%s\r\n* - Administered port exclusions.\r\n\r\n"
	prints("dynamicportrange-tcp", "\r\nProtocol tcp Dynamic Port Range\r\n---------------------------------\r\nStart Port      : 61440\r\nNumber of Ports : 640\r\n\r\n")
	prints("dynamicportrange-udp", "\r\nProtocol udp Dynamic Port Range\r\n---------------------------------\r\nStart Port      : 61440\r\nNumber of Ports : 4096\r\n\r\n")
	prints("excludedportrange-tcp", fmt.Sprintf(exclusions, "tcp", "     61440       61503     *\r\n"))
	prints("excludedportrange-udp", fmt.Sprintf(exclusions, "udp", ""))
	h.start()
	h.until("the ports are counted", func() bool { return h.status().FreePortBlocks != nil })
	s := h.status()
	if *s.FreePortBlocks != (nkp.PortBlocks{TCP: 8, UDP: 64}) || len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], "8 blocks of 64 dynamic TCP ports are free") {
		t.Errorf("free %+v, warnings %q", s.FreePortBlocks, s.Warnings)
	}
	_, text := h.get("metrics", "/metrics")
	for _, want := range []string{`nkp_hns_free_port_blocks{protocol="tcp"} 8`, `nkp_hns_free_port_blocks{protocol="udp"} 64`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// /healthz as on Linux: well while changes are programmed in time, ill when they are not, well again.
func TestHealth(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest, "--healthz-bind-address", "127.0.0.1:0", "--iptables-sync-period", "1s")
	h.start()
	if code, body := h.health(); code != http.StatusOK || !body.Healthy || !body.NodeEligible {
		t.Errorf("after the start: %d %+v", code, body)
	}
	h.HNS.Inject(hnsfake.Fault{Func: "HcnEnumerateEndpoints", Times: -1, Code: hns.CodeFail, Text: "The RPC server is too busy."})
	h.HNS.Calls() // those until now
	failed := 0
	h.until("three syncs have failed", func() bool { // longer than a change may wait: nothing waits
		for _, c := range h.HNS.Calls() {
			if c.Func == "HcnEnumerateEndpoints" {
				failed++
			}
		}
		return failed >= 3
	})
	if code, _ := h.health(); code != http.StatusOK {
		t.Errorf("HNS does not answer, and nothing waits for it: %d", code)
	}
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.until("it is ill", func() bool { code, body := h.health(); return code == http.StatusServiceUnavailable && !body.Healthy })
	h.HNS.Heal()
	h.until("it is well again", func() bool { code, _ := h.health(); return code == http.StatusOK })
	h.has(1)
}
