package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/test/bound"
)

// That a bridge has failed open is said on ovs-vswitchd's word. If it cannot be asked, the result claims no more than the database shows.
func TestFailOpen(t *testing.T) {
	const (
		open   = "bridge(\"br-int\")\n----\n 0. priority 15790320\n    NORMAL\n\nDatapath actions: drop\n"
		closed = "bridge(\"br-int\")\n----\n 0. priority 1, cookie 0x6b70000000000000\n    NORMAL\n\nDatapath actions: drop\n"
		row    = "because fail_mode of bridge br-int is not secure and no controller serves it (Controller tcp:c: is_connected=false, No route to host): run "
	)
	away := ovsdb.Controller{Target: "tcp:c", LastError: "No route to host"}
	for _, x := range []struct {
		name, failMode, answer string // "": none
		controllers            []ovsdb.Controller
		want                   string
	}{
		{"open", "standalone", open, []ovsdb.Controller{away}, "ovs-vswitchd forwards every packet by itself, past nkp's flows, " + row},
		{"open by default", "", open, []ovsdb.Controller{away}, row},
		{"not yet", "", closed, []ovsdb.Controller{away}, ""},
		{"secure", "secure", open, []ovsdb.Controller{away}, ""},
		{"no controller", "", open, nil, ""},
		{"connected, never admitted", "", open, []ovsdb.Controller{{Target: "tcp:c", Connected: true}}, "(Controller tcp:c: is_connected=true, but silent)"},
		{"silent", "", "", []ovsdb.Controller{away}, "may forward every packet by itself, past nkp's flows (it cannot be asked: "},
		{"silent, one connected", "", "", []ovsdb.Controller{away, {Target: "tcp:d", Connected: true}}, ""},
	} {
		set := Settings{OVSDB: controlled(t, func(string) string { return x.answer })}
		sw := &ovsdb.Switch{Bridge: "br-int", Exists: true, DatapathType: "netdev", FailMode: x.failMode, Controllers: x.controllers}
		if got := set.FailOpen(t.Context(), sw); (got == "") != (x.want == "") || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}

	bound.Check(t, "controllers", 5, func(n int) []string {
		sw := &ovsdb.Switch{Bridge: "br-int", Exists: true}
		for i := range n {
			sw.Controllers = append(sw.Controllers, ovsdb.Controller{Target: fmt.Sprintf("tcp:%d", i)})
		}
		set := Settings{OVSDB: controlled(t, func(string) string { return open })}
		return strings.Split(set.FailOpen(t.Context(), sw), ";")
	})
}
