//go:build linux

package packets

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

func weighted(text string) func(*v1.Service) {
	return func(s *v1.Service) { s.Annotations = map[string]string{k8s.AnnotationWeights: text} }
}

// Two endpoints of weights 7 and 3 get 70 % and 30 % of the connections, as far as whole slots allow. Weight 0 drains: connections and UDP clients
// that an endpoint has stay, new ones go elsewhere. Without any other endpoint they are refused.
func TestWeights(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	a, b := c.pods[1], c.remotes[0]
	put := func(weights string) {
		t.Helper()
		web := service("web", "40.0.0.1", weighted(weights))
		dns := service("dns", "40.0.0.2", weighted(weights), protocol(v1.ProtocolUDP))
		c.put(web, slice(web, 8080, ats(a.IP4, b.IP4)...), dns, slice(dns, 8080, ats(a.IP4, b.IP4)...))
	}
	const rounding = 0.02 // of shares to slots
	put(a.IP4.String() + "=7," + b.IP4.String() + "=3")
	c.begin()
	says := func(want string, command ...string) {
		t.Helper()
		out, errOut, status := c.nkp(append(command, "--socket", c.socket())...)
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("%q is missing in nkp %v, which ends with %d: %s%s", want, command, status, out, errOut)
		}
	}
	says("on this node, weight 7: in force", "services", "web", "-o", "wide")
	says(", weight 3 (30 %)", "trace", "--from", c.pods[0].IP4.String(), "--to", "40.0.0.1:80")
	says("delivered to one of the 2, by weight", "trace", "--from", c.pods[0].IP4.String(), "--to", "40.0.0.1:80")
	connections := nightly.Count(2000, 10_000)
	c.reachable(t, "40.0.0.1:80")
	who, errs := c.pods[0].Many(c.ctx, connections, 16, "40.0.0.1:80")
	t.Logf("weights 7 and 3: %v", who)
	least, _ := chance.Bounds(connections, 0.7-rounding)
	_, most := chance.Bounds(connections, 0.7+rounding)
	if n := who[a.Name]; len(errs) > 0 || n < least || n > most {
		t.Errorf("%d of %d connections reached the endpoint of weight 7, want %d to %d; %d errors, first %v", n, connections, least, most, len(errs), firstOf(errs))
	}

	if !onKernelDatapath() { // the kernel keeps those that ended for 10 s, in which an emulated machine does not get here
		says(" more connections\n", "services", "web", "-o", "wide")
	}
	says(" deliver", "trace", "--live", "--from", c.pods[0].IP4.String(), "--to", "40.0.0.1:80")
	held := c.hold(t, c.pods[0].Host, 12, "40.0.0.1:80")
	udp := map[int]string{}
	for port := 20000; port < 20012; port++ {
		udp[port] = c.udpFrom(t, port)
	}
	put(a.IP4.String() + "=0")
	c.settle()
	must(t, c.Settle())
	says("NOT in force: weight 0 (annotation nkp-proxy.github.io/weights)", "services", "web", "-o", "wide")
	who, errs = c.pods[0].Many(c.ctx, 100, 4, "40.0.0.1:80")
	if len(errs) > 0 || who[b.Name] != 100 {
		t.Errorf("with one endpoint drained: %v, %v", who, firstOf(errs))
	}
	stayed := 0
	for port, was := range udp {
		now := c.udpFrom(t, port)
		if now != was {
			t.Errorf("the UDP client at port %d moved from %s to %s", port, was, now)
		}
		if now == a.Name {
			stayed++
		}
	}
	if stayed == 0 {
		t.Error("no UDP client was at the drained endpoint")
	}
	put("0.0.0.0/0=0")
	c.settle()
	must(t, c.Settle())
	checkHeld(t, "after all endpoints were drained", held)
	refused(t, c, c.pods[0].Host, "40.0.0.1:80")
}

// udpFrom asks 40.0.0.2:80 from a port and returns who answers.
func (c *cluster) udpFrom(t *testing.T, port int) string {
	t.Helper()
	a, err := c.pods[0].AskWith(c.ctx, "udp", "40.0.0.2:80", testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: port}})
	must(t, err)
	return a.Pod
}
