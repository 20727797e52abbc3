package command

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
)

// Ports are listed with what contradicts them below; without a bridge the error says why there are none.
func TestPods(t *testing.T) {
	socket := serveAgent(t, map[string]http.HandlerFunc{"GET /v1/pods": func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.PodList{Node: "node-1", Bridge: "br-int", Notes: []string{"not all is known"}, Ports: []api.PodPort{
			{Port: "web", OFPort: 3, IfaceID: "default_web", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3")},
				MAC: "02:00:00:00:00:03", VLAN: 7, Link: "up", State: "ok", Problems: []string{}},
			{Port: "old", Addresses: []netip.Addr{}, Trunks: []uint16{7, 8}, Link: "down", State: "dead", Problems: []string{"its link is\ndown"}},
		}})
	}})
	out, errOut, status := say("pods", "--socket", socket)
	const want = `NOTE: not all is known
PORT  NUMBER  POD          ADDRESSES         MAC                VLAN         LINK  STATE
web   3       default_web  10.0.0.3 fd00::3  02:00:00:00:00:03  7            up    ok
old   0       -            -                 -                  - trunk 7,8  down  dead
    PROBLEM: its link is; down
`
	if out != want || status != exitOK {
		t.Errorf("%d, %s\n%s\nwant\n%s", status, errOut, out, want)
	}
	if out, _, status = say("pods", "-o", "json", "--socket", socket); status != exitOK || !strings.Contains(out, `"ifaceID": "default_web"`) {
		t.Errorf("-o json: %d, %s", status, out)
	}

	none := serveAgent(t, map[string]http.HandlerFunc{"GET /v1/pods": func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no bridge: nkp serves in mode nftables", http.StatusServiceUnavailable)
	}})
	if out, errOut, status = say("pods", "--socket", none); status != exitFailure || out != "" || !strings.Contains(errOut, "there is no bridge") {
		t.Errorf("without a bridge: %d, %s%s", status, out, errOut)
	}
}

// The level is posted, and what it was and is now is printed. Other levels are wrong usage, and nothing is asked.
func TestLogLevel(t *testing.T) {
	asked := ""
	socket := serveAgent(t, map[string]http.HandlerFunc{"POST /v1/log-level": func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("level")
		_, _ = w.Write([]byte(`{"before":"INFO","now":"DEBUG"}`))
	}})
	out, errOut, status := say("log-level", "debug", "--socket", socket)
	if status != exitOK || asked != "debug" || out != "log level: info before, debug now, until nkp restarts\n" {
		t.Errorf("%d, asked for %q: %s%s", status, asked, out, errOut)
	}
	asked = ""
	for args, says := range map[string]string{"": "takes one level", "debug info": "takes one level", "debgu": "did you mean debug?", "error": "is not debug, info or warn"} {
		_, errOut, status := say(append([]string{"log-level", "--socket", socket}, strings.Fields(args)...)...)
		if status != exitUsage || !strings.Contains(errOut, says) || asked != "" {
			t.Errorf("log-level %s: %d, %s", args, status, errOut)
		}
	}
}
