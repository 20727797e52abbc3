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
// its cluster IP; with the agent and without. A name that does not exist is named in the error.
func TestTraceNames(t *testing.T) {
	nightly.Only(t, "the tests of package internal/agent resolve names")
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	_, err := c.Vsctl("set", "Interface", c.pods[1].Interface, "external_ids:iface-id=default_client")
	must(t, err)
	web, six := service("web", "40.0.0.1"), service("six", "fd00:40::1")
	named := at(c.pods[0].IP4)
	named.TargetRef = &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0"}
	c.put(web, slice(web, 8080, named), six, slice(six, 8080, at(c.pods[0].IP6)))
	c.run()
	c.settle()
	c.servePods(t)
	for _, tc := range []struct{ from, to, packet string }{
		{"pod/default/client", "svc/default/web:80", c.pods[1].IP4.String() + " 40.0.0.1:80"},
		{"pod/default/client:4000", "default/web", c.pods[1].IP4.String() + ":4000 40.0.0.1:80"},
		{"pod/default/client", "svc/default/six:80", c.pods[1].IP6.String() + " [fd00:40::1]:80"},
		{"pod/default/web-0", "svc/default/web:80", c.pods[0].IP4.String() + " 40.0.0.1:80"},
	} {
		for how, flags := range map[string][]string{"agent": nil, "manifests": c.common()} {
			r, status := c.trace(t, "tcp", tc.from, tc.to, append([]string{"--live"}, flags...)...)
			if got := r.Packet.From + " " + r.Packet.To; got != tc.packet || r.Verdict != "deliver" || status != 0 || r.Live == nil || !r.Live.Agrees {
				t.Errorf("%s, %s to %s: %s, status %d, %+v", how, tc.from, tc.to, got, status, r)
			}
		}
	}
	r, _ := c.trace(t, "tcp", "pod/default/client", "svc/default/web:80")
	c.happens(t, c.pods[1].Host, "tcp", r.Packet.To, r)
	for _, tc := range []struct{ from, to, want string }{
		{"pod/default/web-0", "svc/default/wbe:80", "no Service default/wbe is served on node"},
		{"pod/default/web-0", "svc/default/wbe:80", "did you mean default/web"},
		{"pod/default/web-0", "svc/default/web:81", "Service default/web has no port 81"},
		{"pod/default/nosuch", "svc/default/web:80", "pod default/nosuch"},
	} {
		for how, flags := range map[string][]string{"agent": nil, "manifests": c.common()} {
			out, errOut, status := c.nkp(append([]string{"trace", "--from", tc.from, "--to", tc.to, "--socket", c.socket()}, flags...)...)
			if status != 1 || out != "" || !strings.Contains(errOut, tc.want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("%s, %s to %s: status %d, %s%s", how, tc.from, tc.to, status, out, errOut)
			}
		}
	}
}
