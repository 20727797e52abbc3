package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Connections to Services that do not change go on, old and new ones, while the API server is killed and started, stopped and
// let go, and the agent is killed and started, in an order that chance draws, amid changes of other Services. Afterwards the
// agent has caught up with all of them. NKP_FAULTS_SEED repeats an order, NKP_FAULTS_TIME is how long it goes on, as in
// test/faults; the long form takes a minute and a half.
func TestFaultsOfTheAPIServer(t *testing.T) {
	seed, limit := uint64(time.Now().UnixNano()), 12*time.Second
	if os.Getenv("NKP_FAULTS_LONG") != "" {
		limit = 90 * time.Second
	}
	if s := os.Getenv("NKP_FAULTS_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 0, 64)
		must(t, err)
		seed = n
	}
	t.Logf("seed: NKP_FAULTS_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
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
	for i, begin := 0, time.Now(); time.Since(begin) < limit; i++ {
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
