package agent

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/ovsdb"
)

func TestTraceQuestion(t *testing.T) {
	if q, _, err := traceQuestion(url.Values{"from": {"10.0.0.5:7"}, "to": {"[fd00::1]:80"}}); err == nil {
		t.Errorf("an IPv4 client of an IPv6 address: %s", q)
	}
	q, live, err := traceQuestion(url.Values{"from": {"10.0.0.5:7"}, "to": {"10.96.0.1:80"}, "protocol": {"UDP"}, "in": {"x"}, "live": {"true"}})
	if err != nil || q.String() != "UDP from 10.0.0.5:7 to 10.96.0.1:80" || q.In != "x" || !live {
		t.Errorf("%s, %t, %v", q, live, err)
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
