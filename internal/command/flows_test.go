package command

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// Objects are listed with their counters below data plane and Service port; a Service that is not served is an error with near names.
func TestFlows(t *testing.T) {
	socket := serveAgent(t, map[string]http.HandlerFunc{
		"GET /v1/flows": func(w http.ResponseWriter, r *http.Request) {
			list := api.FlowList{Node: "node-1", Objects: []dataplane.Object{}}
			if q := r.URL.Query(); q.Get("namespace") == "default" && q.Get("name") == "web" {
				var to dataplane.Listing
				to.Most = 2
				to.AddCounted("group add group_id=7", 12, 840)
				to.Add("services 10.0.0.1 . tcp . 80")
				to.Add("left out")
				list.ServicePorts, list.More, list.Objects = 1, to.More, to.Objects
				list.Objects[0].Plane, list.Objects[0].Service, list.Objects[1].Plane = "ovs", "default/web:http TCP IPv4", "nftables"
			}
			_ = json.NewEncoder(w).Encode(list)
		},
		"GET /v1/services": func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(api.ServiceList{Node: "node-1", Services: []api.ServiceInfo{info("web", nil)}})
		},
	})
	out, errOut, status := say("flows", "default/web", "--socket", socket)
	const want = `PACKETS  BYTES  INSTALLED
    ovs default/web:http TCP IPv4
12       840    group add group_id=7
    nftables
-        -      services 10.0.0.1 . tcp . 80
    and 1 more
`
	if out != want || status != exitOK {
		t.Errorf("%d, %s\n%s\nwant\n%s", status, errOut, out, want)
	}
	if out, _, status := say("flows", "default/web", "-o", "json", "--socket", socket); status != exitOK || !strings.Contains(out, `"packets": 12`) {
		t.Errorf("-o json: %d, %s", status, out)
	}
	_, errOut, status = say("flows", "default/wbe", "--socket", socket)
	if status != exitFailure || !strings.Contains(errOut, "no Service default/wbe is served on node node-1") || !strings.Contains(errOut, "default/web") {
		t.Errorf("an unknown Service: %d, %s", status, errOut)
	}
	for _, args := range [][]string{{"flows"}, {"flows", "a/b", "c"}, {"flows", "/x"}} {
		if _, errOut, status := say(args...); status != exitUsage {
			t.Errorf("%q: %d, %s", args, status, errOut)
		}
	}
}
