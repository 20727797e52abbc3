package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// outage is how long the API server is away in the tests that take their time: longer than any timeout of a client whose
// server says nothing (HTTP/2 asks after 30 s and gives up 15 s later).
const outage = time.Minute

// While the API server is away, and while nkp starts without it, everything stays as it was; commands say so, since
// when, and that they answer from what it said last. Once it is back, changes are taken up.
func TestAPIServerAway(t *testing.T) {
	c, client, web, other := newStory(t)
	commands := [][]string{
		{"status"}, {"services", "default/web"}, {"trace", "--from", client.IP4.String(), "--to", web4},
	}
	says := func(args []string) string {
		out, _ := c.nkp(append(args, "--socket", c.socket())...)
		return out
	}
	silent := func() (err error) {
		for _, args := range commands {
			err = errors.Join(err, hasNot(says(args), "not answer", "NOT answer"))
		}
		return err
	}
	must(t, silent())
	u := c.use(client.Host, web4, other4)
	served := func() {
		t.Helper()
		must(t, errors.Join(c.answers(client.Host, web4, web...), c.answers(client.Host, other4, other)))
	}
	c.server.Kill()
	c.eventually("status tells that the server is away", func() error {
		return has(c.status(), serverURL+": does NOT answer", "ERROR", serverURL+": dial tcp 127.0.0.1:6443: connect: connection refused")
	})
	const since = `since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\d+s`
	url := regexp.QuoteMeta(serverURL)
	note := url + ` has not answered ` + since + `\): this is from what it said last\n`
	for i, want := range []string{
		`source +` + url + `: does NOT answer ` + since + ` ago\); the last state stays in force\n`,
		`(?s)default/web:http/TCP +IPv4 +40\.0\.0\.10:80.*NOTE: ` + note,
		`(?s) 1\. ` + note + `.*verdict: deliver\n`,
	} {
		c.eventually(commands[i][0]+" says that the API server is away", func() error {
			if out := says(commands[i]); !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("%q is not in\n%s", want, out)
			}
			return nil
		})
	}
	served()

	c.agent.Kill()
	served()
	c.startAgent()
	c.eventually("nkp runs again and waits", func() error {
		return has(c.status(), serverURL+": NOT synced yet", "connection refused")
	})
	served()
	u.check("nkp started without the server")

	c.startServer()
	c.eventually("nkp follows the server again", func() error {
		return errors.Join(has(c.status(), serverURL+": synced"), silent())
	})
	served()
	c.createService("late", "web", 30)
	c.eventually("a new Service is served", func() error { return c.answers(client.Host, late4, web...) })
	u.end()
}

// The same for a whole minute, and with the history of all objects gone.
func TestAPIServerAwayForAMinute(t *testing.T) {
	nightly.Only(t, "it takes two minutes; TestAPIServerAway and TestHistoryLost are short")
	t.Parallel()
	c, client, web, other := newStory(t)
	u := c.use(client.Host, web4, other4)
	u.add(c.External, webOnNode)
	c.server.Kill()
	begin := time.Now()
	c.eventually("status tells that the server is away", func() error { return has(c.status(), serverURL+": does NOT answer") })
	time.Sleep(outage/2 - time.Since(begin))
	u.check("half a minute later")
	time.Sleep(outage - time.Since(begin))
	must(t, errors.Join(c.answers(client.Host, web4, web...), c.answers(client.Host, other4, other)))

	c.startServer()
	c.deletePod(web[0])
	u.stop(client.Host, other4)
	c.deleteService("other")
	c.createService("late", "other", 30)
	c.eventually("a new Service is served", func() error { return c.answers(client.Host, late4, other) })
	c.eventually("a pod that is gone is not asked any more", func() error { return c.answers(client.Host, web4, web[1:]...) })
	c.eventually("all is well", func() error { return errors.Join(has(c.status(), serverURL+": synced"), hasNot(c.status(), "ERROR")) })
	u.end()
}

// What happened while nkp could not look, and is forgotten when it looks again, is found out: nkp has lost its
// connection and stands still, objects change, and the server comes back without their history.
func TestHistoryLost(t *testing.T) {
	c, client, web, other := newStory(t)
	u := c.use(client.Host, web4)
	c.server.Kill()
	c.eventually("status tells that the server is away", func() error { return has(c.status(), "does NOT answer") })
	must(t, c.agent.Freeze()) // it cannot connect, so nothing waits for it in a socket
	c.startServer()
	c.deletePod(web[0])
	c.deleteService("other")
	c.createService("late", "web", 30)
	c.eventually("the slices are up to date", func() error {
		return errors.Join(c.hasSlices("late"), c.slicesWithout(web[0]))
	})
	c.server.Kill()
	c.startServer()
	must(t, errors.Join(c.answers(client.Host, web4, web...), c.answers(client.Host, other4, other)))
	must(t, c.agent.Thaw())
	c.eventually("a new Service is served", func() error { return c.answers(client.Host, late4, web[1:]...) })
	c.eventually("a deleted Service is gone", func() error { return c.fails(client.Host, other4, testbed.ErrTimeout) })
	c.eventually("a pod that is gone is not asked any more", func() error { return c.answers(client.Host, web4, web[1:]...) })
	c.eventually("all is well", func() error { return has(c.status(), serverURL+": synced") })
	u.end() // connections to the pod that is gone go on, too
}

// A node is cut off for a minute, without so much as a refused connection, while the other is not: the one goes on with what
// it has, the other follows. Then the server restarts without history, the way is free again, and both are the same.
func TestCutOffForAMinute(t *testing.T) {
	nightly.Only(t, "it takes two minutes; TestGuestbook has the same nodes, TestHistoryLost a server without history")
	t.Parallel()
	g := newGuestbook(t)
	front := g.at("1.22", "1.23", "0.20")
	for i, n := range g.nodes {
		n.startAgent()
		g.eventually("frontend is served on "+n.name, func() error { return g.answers(g.clients[i].Host, frontend, front...) })
		g.eventually("the NodePort is served on "+n.name, func() error { return g.answers(g.External, nodePort(n), front...) })
	}
	const serverOfTwo = "API server https://192.168.3.233:6443"
	near, far := g.clients[0].Host, g.clients[1].Host
	u := g.use(far, frontend, redisMaster)
	u.add(near, frontend)
	u.add(g.External, nodePort(g.one), nodePort(g.two))

	g.cut(true)
	begin := time.Now()
	g.deletePod(g.at("1.22")[0])
	services := g.client.CoreV1().Services("default")
	must(t, services.Delete(g.ctx, "redis-slave", metav1.DeleteOptions{}))
	const late = "172.16.9.9:80"
	_, err := services.Create(g.ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: v1.ServiceSpec{
			ClusterIP: "172.16.9.9", Selector: map[string]string{"app": "guestbook", "tier": "frontend"}, Ports: []v1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	followed := func(h *testbed.Host) {
		t.Helper()
		g.eventually("a new Service is served to "+h.Name, func() error { return g.answers(h, late, g.at("1.23", "0.20")...) })
		g.eventually("a pod that is gone is not asked any more by "+h.Name, func() error { return g.answers(h, frontend, g.at("1.23", "0.20")...) })
		g.eventually("a deleted Service is gone for "+h.Name, func() error { return g.fails(h, redisSlave, testbed.ErrTimeout) })
	}
	followed(near)
	g.server.Kill()
	g.startServer()
	time.Sleep(outage - time.Since(begin))
	u.check("cut off")
	must(t, errors.Join(g.answers(far, frontend, front...), g.answers(far, redisSlave, g.at("0.19", "1.52")...)))
	must(t, g.fails(far, late, testbed.ErrTimeout))
	must(t, has(g.two.status(), serverOfTwo+": does NOT answer", "ERROR"))
	must(t, has(g.one.status(), serverURL+": synced"))

	g.cut(false)
	followed(far)
	for _, n := range g.nodes {
		g.eventually("all is well on "+n.name, func() error { return errors.Join(has(n.status(), ": synced"), hasNot(n.status(), "ERROR")) })
		if out, status := n.diff(); status != 0 {
			t.Errorf("nkp diff on %s ends with %d: %s", n.name, status, out)
		}
	}
	u.end()
}

// cut takes away, or gives back, what node 2 and the API server send each other; nobody tells them.
func (g *guestbook) cut(cut bool) {
	g.t.Helper()
	do := map[bool]string{true: "add", false: "del"}[cut]
	one, two := g.one.Node.IP4.String(), g.two.Node.IP4.String()
	for _, match := range [][]string{{"from", two, "to", one, "dport", "6443"}, {"from", one, "to", two, "sport", "6443"}} {
		_, err := g.Exec(g.Router, append([]string{"ip", "rule", do, "priority", "100", "ipproto", "tcp", "blackhole"}, match...)...)
		must(g.t, err)
	}
}
