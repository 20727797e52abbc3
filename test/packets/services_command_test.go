//go:build linux

package packets

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// endpointWith is an endpoint in some condition.
func endpointWith(e discoveryv1.Endpoint, change func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	change(&e)
	return e
}

func notReady(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(bool) }

func terminating(e *discoveryv1.Endpoint) {
	yes := true
	e.Conditions.Ready, e.Conditions.Serving, e.Conditions.Terminating = new(bool), &yes, &yes
}

func forZone(zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
}

// `nkp services` says which endpoints are in force, why others are not, and what is wrong with a Service; and it shows what
// it is asked for.
func TestServicesCommand(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	node := c.objects["node"].(*v1.Node)
	node.Labels = map[string]string{v1.LabelTopologyZone: "a"}
	web := service("web", "40.0.0.1")
	zoned := service("zoned", "40.0.0.2")
	away := service("away", "40.0.0.3", func(s *v1.Service) {
		s.Namespace = "shop"
	}, exposed(30003), loadBalancer("20.0.0.3", externalLocal))
	none := service("none", "40.0.0.4")
	younger := service("younger", "40.0.0.5", func(s *v1.Service) { s.Spec.ExternalIPs = []string{"40.0.0.1"} })
	six := service("six", "fd00:40::6", protocol(v1.ProtocolUDP))
	c.begin(web, zoned, away, none, younger, six,
		slice(web, 8080, at(c.pods[1].IP4), endpointWith(at(c.pods[2].IP4), notReady), endpointWith(at(c.remotes[0].IP4), terminating)),
		slice(zoned, 8080, endpointWith(at(c.pods[1].IP4), forZone("a")), endpointWith(at(c.remotes[0].IP4), forZone("b"))),
		slice(away, 8080, at(c.remotes[0].IP4)), slice(younger, 8080, at(c.pods[1].IP4)), slice(six, 8080, at(c.remotes[1].IP6)))
	for range 3 {
		c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	}
	c.awaitCounters(t, map[string]uint64{"web": 3})

	list := c.services(t)
	if list.Node != nodeName || list.Mode != "ovs" || time.Since(list.Time) > time.Minute || len(list.Services) != 6 {
		t.Errorf("node %s, mode %s, time %v, %d Service ports", list.Node, list.Mode, list.Time, len(list.Services))
	}
	why := func(name, ip string) string {
		for _, s := range list.Services {
			for _, e := range s.Endpoints {
				if s.Name == name && strings.HasPrefix(e.Address, ip+":") {
					if e.InForce {
						return strings.TrimSuffix("in force; "+e.Why, "; ")
					}
					return e.Why
				}
			}
		}
		return "not there"
	}
	for _, x := range []struct{ name, ip, want string }{
		{"web", c.pods[1].IP4.String(), "in force"},
		{"web", c.pods[2].IP4.String(), "not ready"},
		{"web", c.remotes[0].IP4.String(), "terminating, and others are ready"},
		{"zoned", c.pods[1].IP4.String(), "in force"},
		{"zoned", c.remotes[0].IP4.String(), "for zone b (topology hints)"},
		{"away", c.remotes[0].IP4.String(), "in force; not for policy Local: on " + otherNode},
	} {
		if got := why(x.name, x.ip); got != x.want {
			t.Errorf("%s, endpoint %s: %q, want %q", x.name, x.ip, got, x.want)
		}
	}
	problem := func(name, want string) {
		t.Helper()
		i := slices.IndexFunc(list.Services, func(s api.ServiceInfo) bool { return s.Name == name })
		if got := strings.Join(list.Services[i].Problems, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("problems of %s: %q, want %q", name, got, want)
		}
	}
	problem("web", "")
	problem("six", "")
	problem("none", "no endpoint is in force: new connections are refused")
	problem("away", "no endpoint on this node: new connections to NodePort 30003 (policy Local) are dropped")
	problem("younger", "40.0.0.1:80/TCP belongs to Service default/web:http")

	for _, x := range []struct {
		args []string
		want string // names
	}{
		{[]string{"-n", "shop"}, "away"},
		{[]string{"--namespace", "default", "zoned"}, "zoned"},
		{[]string{"--name", "web"}, "web"},
		{[]string{"default/web:http"}, "web"},
		{[]string{"--vip", "40.0.0.1"}, "web younger"},
		{[]string{"--vip", "20.0.0.3"}, "away"},
		{[]string{"--vip", testbed.NodeIP4.String()}, "away"},
		{[]string{"--vip", "fd00:40::6"}, "six"},
		{[]string{"--vip", "40.0.0.99"}, ""},
		{[]string{"--vip", "(40.0.0.1:80)"}, "web younger"}, // as the list prints it
		{[]string{"--vip", "[fd00:40::6]:80/UDP"}, "six"},
		{[]string{"--vip", "[fd00:40::6]:80/TCP"}, ""},
		{[]string{"--vip", "40.0.0.1:81"}, ""},
		{[]string{"--vip", "node:30003"}, "away"},
		{[]string{"--vip", "node:30004"}, ""},
		{[]string{"--vip", testbed.NodeIP4.String() + ":30003/tcp"}, "away"},
	} {
		var names []string
		for _, s := range c.services(t, x.args...).Services {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != x.want {
			t.Errorf("services %v: %q, want %q", x.args, got, x.want)
		}
	}
	c.servicesTables(t)
	c.servicesUsage(t)
}

// servicesTables checks what people see.
func (c *cluster) servicesTables(t *testing.T) {
	t.Helper()
	out, errOut, status := c.nkp("services", "--socket", c.socket())
	if status != 0 {
		t.Fatalf("services ends with %d: %s", status, errOut)
	}
	for _, want := range []string{
		`(?m)^SERVICE +FAMILY +FRONTENDS +ENDPOINTS +CONNECTIONS +PKTS IN +PKTS OUT +BYTES IN +BYTES OUT$`,
		`(?m)^default/web:http/TCP +IPv4 +40\.0\.0\.1:80 +1/3 +3 +\d+ +\d+ +\d+ +\d+$`,
		`(?m)^default/six:http/UDP +IPv6 +\[fd00:40::6\]:80 +1/1 +0 +0 +0 +0 +0$`,
		`(?m)^shop/away:http/TCP +IPv4 +40\.0\.0\.3:80 20\.0\.0\.3:80 node:30003 +1/1 `,
		`(?m)^default/younger:http/TCP +IPv4 +40\.0\.0\.5:80 \(40\.0\.0\.1:80\) `,
		`(?m)^    PROBLEM: no endpoint is in force`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line like %s in\n%s", want, out)
		}
	}
	if strings.Contains(out, "not ready") {
		t.Errorf("endpoints are listed without -o wide:\n%s", out)
	}
	out, _, _ = c.nkp("services", "-o", "wide", "default/web", "--socket", c.socket())
	for _, want := range []string{
		"    ClusterIP 40.0.0.1:80, policy Cluster\n", "on this node, zone a: in force\n", "on this node, zone a: NOT in force: not ready\n",
		"on " + otherNode + ": NOT in force: terminating, and others are ready\n",
		"    connection from " + c.pods[0].IP4.String() + ":", " by 40.0.0.1:80 to " + c.pods[1].IP4.String() + ":8080, ", ", expires in ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("-o wide does not say %q:\n%s", want, out)
		}
	}
}

// servicesUsage checks what is refused.
func (c *cluster) servicesUsage(t *testing.T) {
	t.Helper()
	for _, x := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--watch", "--interval", "10ms"}, 2, "less than 1s"},
		{[]string{"a", "b"}, 2, "one Service at most"},
		{[]string{"web", "--name", "web"}, 2, "named twice"},
		{[]string{"default/"}, 2, "NAMESPACE/NAME"},
		{[]string{"default/web", "-n", "shop"}, 2, "not in namespace"},
		{[]string{"--socket", c.dir + "/none.sock"}, 1, "no nkp answers"},
		{[]string{"nowhere"}, 1, "no Service nowhere is served on node " + nodeName},
		{[]string{"nosuch-service"}, 1, "no Service nosuch-service is served on node " + nodeName},
		{[]string{"nosuch-service", "-o", "json"}, 1, "no Service nosuch-service is served on node " + nodeName},
		{[]string{"elsewhere/web"}, 1, "did you mean default/web"},
		{[]string{"wbe"}, 1, "did you mean default/web"},
	} {
		out, errOut, status := c.nkp(append([]string{"services", "--socket", c.socket()}, x.args...)...)
		if status != x.status || out != "" || !strings.Contains(errOut, x.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("services %v ends with %d: %q %q, want %d and %q", x.args, status, out, errOut, x.status, x.want)
		}
	}
}

// --watch shows rates, and goes on when nkp is restarted.
func TestServicesWatch(t *testing.T) {
	nightly.Only(t, "TestServicesCommand has what it shows")
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.put(slice(s, 8080, at(c.pods[1].IP4)))
	c.settle()
	watch := harness.Start(t, c.Node, c.bin, "services", "--socket", c.socket(), "--watch", "--interval", "1s")
	await := func(what, pattern string) {
		t.Helper()
		c.eventually(what, func() error { return unlike(watch.Log.String(), pattern) })
	}
	await("before there is anything to compare with", `(?m)^default/web:http/TCP .*0 +- +- +- +- +-$`)
	await("at rest", `(?m)^default/web:http/TCP .* 0\.0 +0\.0 +0\.0 +0\.0 +0\.0$`)
	const rates = `default/web:http/TCP .*( +[1-9]\d*\.\d){5}\n`
	load := c.underLoad(t, "40.0.0.1:80")
	await("under load", rates)
	must(t, c.agent.Stop(syscall.SIGTERM))
	await("nkp is down", `no nkp answers`)
	c.run()
	await("nkp is back", `(?s)no nkp answers.*\n`+rates)
	load.end()
}

// What the switch refuses, what a process of the node listens on and what cannot be used of a slice is said at its Service.
func TestServicesProblems(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	clash := service("clash", "40.0.0.7")
	taken := service("taken", "40.0.0.8", exposed(30008))
	odd := slice(taken, 8080, at(c.pods[1].IP4))
	odd.Endpoints = append(odd.Endpoints, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}})
	c.put(clash, taken, slice(clash, 8080, at(c.pods[1].IP4)), odd)
	_, err := c.Ofctl("add-flow", c.Bridge, "cookie=5,table=1,priority=300,ct_state=-est-rel-inv,tcp,nw_dst=40.0.0.7,tp_dst=80,actions=drop")
	must(t, err)
	l, err := c.Node.Listen(":30008")
	must(t, err)
	defer l.Close()
	c.run()
	for _, x := range []struct{ name, want string }{
		{"clash", "another owner's flow has the same table, priority and match"},
		{"taken", "NodePort 30008/TCP of default/taken:http is also listened on by"},
		{"taken", "EndpointSlice default/taken-1: endpoints[1].addresses[0]: "},
	} {
		c.eventually(x.name, func() error {
			out, errOut, _ := c.nkp("services", x.name, "--socket", c.socket())
			if !strings.Contains(out, "    PROBLEM: ") || !strings.Contains(out, x.want) {
				return fmt.Errorf("no PROBLEM %q in %s%s", x.want, out, errOut)
			}
			return nil
		})
	}
	c.logSays("PortInUse") // the Event
	out, _, _ := c.nkp("services", "clash", "--socket", c.socket())
	if strings.Contains(out, "30008") {
		t.Errorf("a problem of another Service is shown:\n%s", out)
	}
}

// A pod whose device was renamed is reached, although ovs-vswitchd takes the device for down: nkp says what is to be feared.
func TestServicesOfRenamedDevice(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	web, device := service("web", "40.0.0.1"), c.pods[0].Interface
	c.begin(web, slice(web, 8080, at(c.pods[0].IP4)))
	for _, change := range [][]string{{device, "down"}, {device, "name", "renamed0"}, {"renamed0", "up"}} {
		_, err := c.Node.Exec(c.ctx, append([]string{"ip", "link", "set"}, change...)...)
		must(t, err)
	}
	wait.NoError(t, "the database to call it down", func() error {
		if out, err := c.Vsctl("get", "Interface", device, "admin_state"); err != nil || strings.TrimSpace(out) != "down" {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	if a, err := c.pods[1].Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil || a.Pod != c.pods[0].Name {
		t.Fatalf("answered by %q: %v", a.Pod, err)
	}
	for _, args := range [][]string{{"services", "default/web"}, {"pods"}} {
		out, errOut, status := c.nkp(append(args, "--socket", c.socket())...)
		if status != 0 || strings.Contains(out, "nothing reaches") || strings.Contains(out, "dead") || !strings.Contains(out, "no device of that name") {
			t.Errorf("nkp %s: status %d: %s%s", args, status, out, errOut)
		}
	}
}
