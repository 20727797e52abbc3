//go:build linux

package agent

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/ovsdb"
)

// A pod's port is dead, limited or well, and says why. Ports that lead to no pod are left out.
func TestPodPorts(t *testing.T) {
	mac, ip := net.HardwareAddr{2, 0, 0, 0, 0, 1}, []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	ports := podPorts(&ovsdb.Switch{Ports: []ovsdb.Port{
		{Name: "uplink", OFPort: 1},
		{Name: "well", OFPort: 2, IPs: ip, MAC: mac, Tag: 7},
		{Name: "limited", OFPort: 3, IfaceID: "a_b", Limited: []string{"a limit"}},
		{Name: "down", OFPort: 4, IfaceID: "a_c", LinkDown: true},
		{Name: "dead", OFPort: 5, IfaceID: "a_d", LinkDown: true, Dead: []string{"no link"}, Limited: []string{"a limit"}},
		{Name: "none", IfaceID: "a_e", Type: "internal", Error: "no such device"},
		{Name: "new", IfaceID: "a_f"},
	}})
	var got []string
	for _, p := range ports {
		got = append(got, strings.Join(append([]string{p.Port, p.Link, p.State}, p.Problems...), "|"))
	}
	want := []string{"well|up|ok", "limited|up|limited|a limit", "down|down|dead|Interface.link_state is down: nothing passes",
		"dead|down|dead|no link|a limit", "none|-|dead|it has no OpenFlow number: no such device",
		"new|up|dead|it has no OpenFlow number: ovs-vswitchd has not given it one, and no error"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if w := ports[0]; w.MAC != mac.String() || w.VLAN != 7 || !slices.Equal(w.Addresses, ip) || w.Trunks == nil || w.Problems == nil {
		t.Errorf("%+v", w)
	}
}

// Without a bridge there are no pods' ports, and the answer says which mode it is.
func TestPodsWithoutBridge(t *testing.T) {
	a := idle(t)
	go func() { (<-a.asks)() }() // as the agent's loop does
	if _, err := a.pods(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no bridge: nkp serves in mode iptables") {
		t.Error(err)
	}
}

// The level is changed by POST only, and the answer has the one before.
func TestServeLogLevel(t *testing.T) {
	a := idle(t)
	a.logLevel = new(slog.LevelVar)
	for _, x := range []struct {
		method, level string
		code          int
		says          string
		now           slog.Level
	}{
		{http.MethodGet, "debug", http.StatusMethodNotAllowed, "", slog.LevelInfo},
		{http.MethodPost, "loud", http.StatusBadRequest, "loud", slog.LevelInfo},
		{http.MethodPost, "debug", http.StatusOK, `{"before":"INFO","now":"DEBUG"}`, slog.LevelDebug},
		{http.MethodPost, "warn", http.StatusOK, `{"before":"DEBUG","now":"WARN"}`, slog.LevelWarn},
	} {
		w := httptest.NewRecorder()
		a.handler().ServeHTTP(w, httptest.NewRequest(x.method, "/v1/log-level?level="+x.level, nil))
		if w.Code != x.code || !strings.Contains(w.Body.String(), x.says) || a.logLevel.Level() != x.now {
			t.Errorf("%s %s: %d, %s, level %s", x.method, x.level, w.Code, w.Body, a.logLevel.Level())
		}
	}
}
