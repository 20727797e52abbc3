package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

func TestTraceRequest(t *testing.T) {
	if _, q, err := api.ParseTrace(url.Values{"from": {"10.0.0.5:7"}, "to": {"[fd00::1]:80"}}); err == nil {
		t.Errorf("an IPv4 client of an IPv6 address: %s", q)
	}
	r, q, err := api.ParseTrace(url.Values{"from": {"10.0.0.5:7"}, "to": {"10.96.0.1:80"}, "protocol": {"UDP"}, "in": {"x"}, "live": {"true"}})
	if err != nil || q.String() != "UDP from 10.0.0.5:7 to 10.96.0.1:80" || q.In != "x" || !r.Live {
		t.Errorf("%s, %+v, %v", q, r, err)
	}
}

// A bad question is the client's mistake, and told as such; nothing runs for it.
func TestServeTraceRefusesNonsense(t *testing.T) {
	for query, want := range map[string]string{
		"":                                       "from: ",
		"from=10.0.0.5":                          "to: ",
		"from=10.0.0.5&to=1.2.3.4:80&protocol=x": "protocol: ",
	} {
		w := httptest.NewRecorder()
		new(Agent).serveTrace(w, httptest.NewRequest(http.MethodGet, "/v1/trace?"+query, nil))
		if w.Code != http.StatusBadRequest || !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("%q: %d %s", query, w.Code, w.Body)
		}
	}
}

func TestPortNames(t *testing.T) {
	db := &ovsdb.Switch{Bridge: "br-int", Exists: true, Ports: []ovsdb.Port{{Name: "eth0", PortName: "eth0", OFPort: 1}, {Name: "pod-1", PortName: "pod-1", OFPort: 11}}}
	s := &Settings{}
	for in, want := range map[string]string{"11": "pod-1", "pod-1": "pod-1", "LOCAL": "LOCAL", "": "", "99": "99"} {
		if name, uplink := s.PortNames(db, in); name != want || uplink != "eth0" {
			t.Errorf("%q: %q, uplink %q; want %q, eth0", in, name, uplink, want)
		}
	}
	if name, uplink := s.PortNames(nil, "11"); name != "11" || uplink != "" {
		t.Errorf("without a switch: %q, %q", name, uplink)
	}
}

// A pod's port of the bridge comes before what the source knows.
func TestPodAddresses(t *testing.T) {
	pod := k8s.ServiceName{Namespace: "default", Name: "client"}
	here := netip.MustParseAddr("10.0.0.12")
	db := &ovsdb.Switch{Ports: []ovsdb.Port{{Name: "a", IfaceID: "default_client2", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.11")}}, {Name: "b", IfaceID: "default_client", IPs: []netip.Addr{here}}}}
	there := finder{netip.MustParseAddr("10.0.1.1")}
	for _, tc := range []struct {
		name   string
		db     *ovsdb.Switch
		source any
		want   string
	}{
		{"by the port", db, there, "[10.0.0.12] <nil>"},
		{"by the source", nil, there, "[10.0.1.1] <nil>"},
		{"by neither", &ovsdb.Switch{}, nil, "[] pod default/client is not known here: pass the pod's address"},
	} {
		if ips, err := PodAddresses(t.Context(), tc.db, tc.source, pod); fmt.Sprint(ips, err) != tc.want {
			t.Errorf("%s: %v, %v; want %s", tc.name, ips, err, tc.want)
		}
	}
}

type finder []netip.Addr

func (f finder) PodIPs(context.Context, string, string) ([]netip.Addr, error) { return f, nil }
