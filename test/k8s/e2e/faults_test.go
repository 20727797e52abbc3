package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/nightly"
)

// Connections to Services that do not change go on, old and new ones, while the API server is killed and started, stopped and
// let go, and the agent is killed and started, in an order that chance draws, amid changes of other Services. Afterwards the
// agent has caught up with all of them. NKP_SEED repeats an order.
func TestFaultsOfTheAPIServer(t *testing.T) {
	nightly.Only(t, "it starts the API server 15 times; TestAPIServerAway has each fault once")
	const rounds = 25
	r := rand.New(rand.NewPCG(nightly.Seed(t), 0))
	c, client, _, other := newStory(t)
	u := c.use(client.Host, web4, other4)
	u.add(c.External, webOnNode)
	wait := func(most int) { time.Sleep(time.Duration(r.IntN(most+1)) * time.Millisecond) }
	changed := 0
	change := func() {
		changed++
		c.createService(fmt.Sprint("changed-", changed), "other", 100+changed)
		if changed > 1 {
			c.deleteService(fmt.Sprint("changed-", changed-1))
		}
	}
	faults := []struct {
		name string
		do   func()
	}{
		{"API server killed and started", func() { c.server.Kill(); wait(1000); c.startServer() }},
		{"API server stopped for a while", func() { must(t, c.server.Freeze()); wait(3000); must(t, c.server.Thaw()) }},
		{"agent killed and started", func() { c.agent.Kill(); wait(500); c.startAgent() }},
		{"agent killed and started while the API server is away", func() { c.server.Kill(); c.agent.Kill(); c.startAgent(); wait(1000); c.startServer() }},
		{"agent stopped while the API server is restarted", func() {
			must(t, c.agent.Freeze())
			change()
			c.server.Kill()
			c.startServer()
			change()
			must(t, c.agent.Thaw())
		}},
	}
	order := r.Perm(len(faults))
	for i := range rounds {
		f := faults[r.IntN(len(faults))]
		if i < len(order) {
			f = faults[order[i]]
		}
		at := time.Now()
		f.do()
		change()
		t.Logf("%s  %s: %v", at.Format("15:04:05.000"), f.name, time.Since(at).Round(time.Millisecond))
	}
	last := fmt.Sprintf("40.0.0.%d:80", 100+changed)
	c.eventually("the last change is served", func() error { return c.answers(client.Host, last, other) })
	c.eventually("the switch is in step", func() error {
		if out, status := c.diff(); status != 0 {
			return fmt.Errorf("nkp diff ends with %d: %s", status, out)
		}
		return nil
	})
	u.end()
}
