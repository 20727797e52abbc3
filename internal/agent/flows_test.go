//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// many is a data plane with so many objects of each Service port.
type many struct {
	dataplane.Plane
	objects int
	err     error
}

func (m many) List(_ context.Context, of k8s.PortName, to *dataplane.Listing) error {
	for i := range m.objects {
		to.AddCounted(fmt.Sprint("flow add ", of.Name, i), 2, 3)
	}
	return m.err
}

// What two data planes have of a Service is listed up to the bound, all of them together; what is left out is counted.
func TestFlows(t *testing.T) {
	a := idle(t)
	a.planes = planes{all: []plane{{many{objects: 300_000}, kinds[mode.OVS]}, {many{objects: 2}, kinds[mode.NFTables]}}}
	ask := func(query string) (list api.FlowList, code int, text string) {
		go func() { (<-a.asks)() }() // as the agent's loop does
		w := httptest.NewRecorder()
		a.handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/flows?"+query, nil))
		text = w.Body.String()
		_ = json.Unmarshal([]byte(text), &list)
		return list, w.Code, text
	}
	list, code, _ := ask("namespace=default&name=frontend")
	if ports := list.ServicePorts; code != 200 || ports == 0 || len(list.Objects) != maxFlows || list.More != ports*300_002-maxFlows {
		t.Errorf("%d: %d Service ports, %d objects, %d more", code, ports, len(list.Objects), list.More)
	}
	if o := list.Objects[0]; o.Plane != "ovs" || o.Text != "flow add frontend0" || *o.Packets != 2 || *o.Bytes != 3 || !strings.HasPrefix(o.Service, "default/frontend") {
		t.Errorf("%+v", o)
	}
	if list, _, _ := ask("most=7"); len(list.Objects) != 7 || list.Objects[0].Service != "" || list.More != 300_002-7 {
		t.Errorf("of all: %+v", list)
	}
	if list, code, text := ask("name=none"); code != 200 || list.ServicePorts != 0 || !strings.Contains(text, `"objects":[]`) {
		t.Errorf("of no Service: %d, %s", code, text)
	}
	a.planes = planes{all: []plane{{many{err: errors.New("it does not answer")}, kinds[mode.OVS]}}}
	if _, code, text := ask("most=7"); code != 503 || !strings.Contains(text, "it does not answer") {
		t.Errorf("%d, %s", code, text)
	}
}

// The log keeps its newest whole lines.
func TestRecentLog(t *testing.T) {
	l := &RecentLog{}
	line := strings.Repeat("x", 97)
	for i := range 3 * recentLogSize / 100 {
		fmt.Fprintf(l, "%s%d\n", line, i%10)
	}
	text := l.String()
	if len(text) > recentLogSize || len(text) < recentLogSize-100 || strings.Count(text, "\n")*99 != len(text) || !strings.HasPrefix(text, "xxx") {
		t.Errorf("%d bytes, %d lines: %.200q", len(text), strings.Count(text, "\n"), text)
	}
}

// Of the database, the report has what nkp reads, and nothing that others keep there.
func TestDescribeSwitch(t *testing.T) {
	ids := map[string]string{"password": "hunter2"}
	text := DescribeSwitch(ovsdb.Switch{Bridge: "br-int", ExternalIDs: ids, SystemIDs: ids, Controllers: []ovsdb.Controller{{Target: "tcp:127.0.0.1:1"}},
		Ports: []ovsdb.Port{{Name: "web", OFPort: 3, MAC: []byte{2, 0, 0, 0, 0, 3}}}})
	for _, says := range []string{"Bridge {Bridge:br-int ", "\nController {Target:tcp:127.0.0.1:1 ", "\nPort and Interface {Name:web ", "MAC:02:00:00:00:00:03"} {
		if !strings.Contains(text, says) {
			t.Errorf("no %q: %s", says, text)
		}
	}
	if strings.Contains(text, "hunter2") {
		t.Error(text)
	}
}
