//go:build linux

package packets

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Names stand for the addresses that packets have: a pod by its port of the bridge or by the EndpointSlice that names it, a Service by
// its cluster IP; with the agent and without.
func TestTraceNames(t *testing.T) {
	nightly.Only(t, "the tests of package internal/agent resolve names")
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	_, err := c.Vsctl("set", "Interface", c.pods[1].Interface, "external_ids:iface-id=default_client")
	must(t, err)
	web := service("web", "40.0.0.1")
	named := at(c.pods[0].IP4)
	named.TargetRef = &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0"}
	c.put(web, slice(web, 8080, named))
	c.run()
	c.settle()
	for _, tc := range []struct{ from, to, packet string }{
		{"pod/default/client", "svc/default/web:80", c.pods[1].IP4.String() + " 40.0.0.1:80"},
		{"pod/default/web-0", "svc/default/web:80", c.pods[0].IP4.String() + " 40.0.0.1:80"},
	} {
		for how, flags := range map[string][]string{"agent": nil, "manifests": c.common()} {
			r, status := c.trace(t, "tcp", tc.from, tc.to, append([]string{"--live"}, flags...)...)
			if got := r.Packet.From + " " + r.Packet.To; got != tc.packet || r.Verdict != "deliver" || status != 0 || r.Live == nil || !r.Live.Agrees {
				t.Errorf("%s, %s to %s: %s, status %d, %+v", how, tc.from, tc.to, got, status, r)
			}
		}
	}
	for how, flags := range map[string][]string{"agent": nil, "manifests": c.common()} {
		out, errOut, status := c.nkp(append([]string{"trace", "--socket", c.socket(),
			"--from", "pod/default/nosuch", "--to", "svc/default/web:80"}, flags...)...)
		if status != 1 || out != "" || !strings.Contains(errOut, "pod default/nosuch") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: status %d, %s%s", how, status, out, errOut)
		}
	}
}
