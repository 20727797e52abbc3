//go:build linux

package packets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// hold opens n connections and keeps them.
func (c *cluster) hold(t *testing.T, from *testbed.Host, n int, to string) []*testbed.Held {
	t.Helper()
	held := make([]*testbed.Held, n)
	for i := range held {
		var err error
		held[i], err = from.Hold(c.ctx, to, testbed.DialOptions{})
		must(t, err)
	}
	return held
}

func checkHeld(t *testing.T, when string, held []*testbed.Held) {
	t.Helper()
	for _, h := range held {
		if err := h.Check(); err != nil {
			t.Errorf("%s: a connection to %s broke: %v", when, h.Who, err)
		}
	}
}

// An established connection stays where it is: when other endpoints go, when its own leaves the Service, when
// weights change, when the whole pipeline is removed and comes back.
func TestEstablishedConnectionsStay(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := start(t, s)
	a, b, r := c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4
	c.put(slice(s, 8080, ats(a, b, r)...))
	c.settle()
	held := c.hold(t, c.pods[0].Host, 12, "40.0.0.1:80")
	for _, step := range []struct {
		when string
		ends []netip.Addr
	}{
		{"at first", []netip.Addr{a, b, r}},
		{"after an endpoint was removed", []netip.Addr{a, b}},
		{"after a second one was removed", []netip.Addr{a}},
		{"after endpoints were added", []netip.Addr{a, b, r, c.remotes[1].IP4, c.pods[0].IP4}},
	} {
		c.put(slice(s, 8080, ats(step.ends...)...))
		c.settle()
		checkHeld(t, step.when, held)
	}
	_, err := c.Ofctl("del-flows", c.Bridge, "cookie=0x6e6b700000000000/0xffffff0000000000")
	must(t, err)
	c.settle()
	checkHeld(t, "after all flows were deleted and repaired", held)
	c.remove(slice(s, 8080))
	c.settle()
	checkHeld(t, "without any endpoint", held)
}

// A load is new connections all the time, from one host to one address.
type load struct {
	t           *testing.T
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	n, failures atomic.Int64
	first       atomic.Pointer[error]
}

// underLoad starts a load from the first pod, which ends with the test at the latest.
func (c *cluster) underLoad(t *testing.T, to string) *load {
	return c.load(t, c.pods[0].Host, to, 2, 0)
}

// load starts a load of some connections at a time, which rests after each of them.
func (c *cluster) load(t *testing.T, from *testbed.Host, to string, atOnce int, rest time.Duration) *load {
	l := &load{t: t}
	ctx, cancel := context.WithCancel(c.ctx)
	l.cancel = cancel
	for range atOnce {
		l.wg.Go(func() { // ends with ctx
			for ; ctx.Err() == nil; time.Sleep(rest) {
				_, err := from.AskWith(c.ctx, "tcp", to, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
				if err != nil {
					l.failures.Add(1)
					l.first.CompareAndSwap(nil, &err)
				}
				l.n.Add(1)
			}
		})
	}
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

// more waits until n more connections have come to their end.
func (l *load) more(n int64) {
	l.t.Helper()
	n += l.n.Load()
	wait.For(l.t, "new connections", func() bool { return l.n.Load() >= n })
}

// end ends the load. None of its connections may have failed.
func (l *load) end() {
	l.t.Helper()
	l.cancel()
	l.wg.Wait()
	if p := l.first.Load(); p != nil {
		l.t.Errorf("%d of %d new connections failed, first: %v", l.failures.Load(), l.n.Load(), *p)
	}
	l.t.Logf("%d new connections", l.n.Load())
}

// Killed in the middle of its work and started again, nkp converges, and neither old nor new connections of Services
// that did not change fail meanwhile.
func TestKillMidSync(t *testing.T) {
	nightly.Only(t, "nkp is killed six times, at random points of its work; TestRestartChangesNothing and TestForeignFlowsSurvive restart it")
	rng := rand.New(rand.NewPCG(nightly.Seed(t), 0))
	steady := service("steady", "40.0.0.1")
	c := start(t, steady)
	c.put(slice(steady, 8080, ats(c.pods[1].IP4, c.remotes[0].IP4)...))
	c.settle()
	held := c.hold(t, c.pods[0].Host, 6, "40.0.0.1:80")
	load := c.underLoad(t, "40.0.0.1:80")
	for round := range 6 {
		for i := range 400 {
			s := service(nth("churn", i), vip(41, i))
			c.objects["s"+s.Name], c.objects["e"+s.Name] = s, slice(s, int32(8080+round), ats(c.pods[1].IP4, c.remotes[1].IP4)...)
		}
		c.write()
		load.more(1 + rng.Int64N(50)) // nkp is somewhere between reading and committing
		must(c.t, c.agent.Stop(syscall.SIGKILL))
		checkHeld(t, "with nkp killed", held)
		c.run()
	}
	c.settle()
	load.more(10)
	load.end()
	checkHeld(t, "at the end", held)
}

// A graceful stop leaves everything on the switch, a start finds it and changes nothing.
func TestRestartChangesNothing(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC) // else it comes to be known at some time
	c.begin(s, slice(s, 8080, ats(c.pods[1].IP4, c.remotes[0].IP4)...))
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	if status := c.agent.Cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("SIGTERM ends nkp with status %d", status)
	}
	if _, err := c.pods[0].Ask(c.ctx, "tcp", "40.0.0.1:80"); err != nil {
		t.Errorf("with nkp stopped: %v", err)
	}
	if _, errOut, status := c.nkp("status", "--socket", c.socket(), "--ovsdb", c.DB(), "--bridge", c.Bridge); status != 2 || !strings.Contains(errOut, "groups of nkp's") {
		t.Errorf("status without an agent ends with %d: %s", status, errOut)
	}
	same := c.flowsNow(t)
	c.runWith("--audit-period", "1s")
	c.settle()
	c.audited(t)
	if log := c.agent.Log.String(); strings.Contains(log, "bringing the switch in step") {
		t.Errorf("a restart had something to repair:\n%s", log)
	}
	if err := same(); err != nil {
		t.Errorf("a restart changed flows: %v", err)
	}
}

var flowAge = regexp.MustCompile(`duration=([\d.]+)s`)

// flowsNow returns what reports whether the switch still has the flows of now: others, or the same ones made anew, are an error.
func (c *cluster) flowsNow(t *testing.T) (same func() error) {
	t.Helper()
	dump := func() string {
		t.Helper()
		out, err := c.Ofctl("--no-stats", "--sort", "dump-flows", c.Bridge)
		must(t, err)
		return out
	}
	before, at := dump(), time.Now()
	return func() error {
		least := time.Since(at).Seconds() // taken before the first dump: ovs-vswitchd's clock stands still for a round of its main loop
		if after := dump(); after != before {
			return fmt.Errorf("were\n%s\nand are\n%s", before, after)
		}
		out, err := c.Ofctl("dump-flows", c.Bridge)
		if err != nil {
			return err
		}
		ages := 0
		for line := range strings.Lines(out) {
			if m := flowAge.FindStringSubmatch(line); m != nil {
				age, err := strconv.ParseFloat(m[1], 64)
				if err != nil || age < least {
					return fmt.Errorf("made anew within %.3f s: %s", least, line)
				}
				ages++
			}
		}
		if ages == 0 {
			return fmt.Errorf("no flow has an age:\n%s", out)
		}
		return nil
	}
}

// When ovs-vswitchd is restarted, nkp finds an empty switch and fills it; connections work again without help. Meanwhile it does not
// say that it is in step.
func TestSwitchRestart(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := start(t, s)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	const inStep = `nkp_in_step{ip_family="IPv4"}`
	c.scrapeUntil(map[string]float64{"nkp_channel_up": 1, inStep: 1})
	c.KillVswitchd()
	c.scrapeUntil(map[string]float64{"nkp_channel_up": 0, inStep: 0})
	must(t, c.StartVswitchd())
	c.settle()
	must(t, c.Settle())
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	c.scrapeUntil(map[string]float64{"nkp_channel_up": 1, inStep: 1})
}

// What others put on the bridge survives everything nkp does, and nkp's own goes with cleanup.
func TestForeignFlowsSurvive(t *testing.T) {
	s := service("web", "40.0.0.1", affinity(60))
	c := newCluster(t, testbed.Options{})
	foreign := []string{
		"cookie=0x1234,table=0,priority=250,tcp,tp_dst=9999,actions=drop",
		"cookie=0x0,table=1,priority=300,udp,tp_dst=9999,actions=drop",
		"cookie=0x6e6b710000000001,table=1,priority=123,actions=drop", // a neighbour of nkp's cookies
		"cookie=0xaa,table=77,priority=1,actions=group:7",
		"cookie=0x0,table=0,priority=0,actions=NORMAL",
	}
	_, err := c.Ofctl("add-group", c.Bridge, "group_id=7,type=select,bucket=actions=output:1")
	must(t, err)
	_, err = c.Ofctl("add-group", c.Bridge, "group_id=0x70000000,type=all,bucket=actions=output:1")
	must(t, err)
	_, err = c.Ofctl("add-meter", c.Bridge, "meter=7,pktps,band=type=drop,rate=1")
	must(t, err)
	for _, f := range foreign {
		_, err := c.Ofctl("add-flow", c.Bridge, f)
		must(t, err)
	}
	others := func() string {
		t.Helper()
		flows, err := c.Ofctl("--no-stats", "--sort", "dump-flows", c.Bridge)
		must(t, err)
		var b strings.Builder
		for line := range strings.Lines(flows) {
			if !strings.Contains(line, "cookie=0x6e6b700") {
				b.WriteString(line)
			}
		}
		groups, err := c.Ofctl("dump-groups", c.Bridge)
		must(t, err)
		for line := range strings.Lines(groups) {
			if strings.Contains(line, "group_id=7,") || strings.Contains(line, "group_id=1879048192") {
				b.WriteString(line)
			}
		}
		meters, err := c.Ofctl("dump-meters", c.Bridge)
		must(t, err)
		for line := range strings.Lines(meters) {
			if strings.Contains(line, "meter=7 ") {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	before := others()
	if n := strings.Count(before, "\n"); n < len(foreign)+3 {
		t.Fatalf("only %d foreign objects:\n%s", n, before)
	}
	check := func(when string) {
		t.Helper()
		if now := others(); now != before {
			t.Errorf("%s: foreign objects were\n%snow\n%s", when, before, now)
		}
	}
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.run()
	c.settle()
	check("after the first sync")
	c.servePods(t)
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name) // learns a pin
	c.put(slice(s, 8080, at(c.pods[1].IP4)))
	c.settle()
	check("after a change")
	must(c.t, c.agent.Stop(syscall.SIGKILL))
	c.remove(s)
	c.run()
	c.settle()
	check("after a restart with a Service less")
	if _, errOut, status := c.nkp("cleanup", "--ovsdb", c.DB(), "--bridge", c.Bridge, "--socket", c.socket()); status != 1 || !strings.Contains(errOut, "stop it first") {
		t.Errorf("cleanup beside a running nkp ends with %d: %s", status, errOut)
	}
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	c.cleanup(t)
	check("after cleanup")
	flows, _ := c.Ofctl("dump-flows", c.Bridge)
	groups, _ := c.Ofctl("dump-groups", c.Bridge)
	if strings.Contains(flows, "cookie=0x6e6b700") || strings.Contains(groups, "dp_hash") || strings.Contains(groups, "fields(") {
		t.Errorf("cleanup left:\n%s%s", flows, groups)
	}
}

// A Service that the switch refuses (here: its table is full) is named and waits; its neighbours are served and can
// change; when there is room again, it comes by itself.
func TestRefusedServiceWaits(t *testing.T) {
	plain, sticky := service("plain", "40.0.0.1"), service("sticky", "40.0.0.2", affinity(60))
	c := start(t, plain)
	_, err := c.Vsctl("--id=@full", "create", "Flow_Table", "flow_limit=1", "overflow_policy=refuse", "--",
		"set", "Bridge", c.Bridge, "flow_tables:11=@full")
	must(t, err)
	c.put(slice(plain, 8080, at(c.remotes[0].IP4)), sticky, slice(sticky, 8080, ats(c.pods[1].IP4, c.remotes[1].IP4)...))
	for i := range 30 { // the switch names one at a time
		s := service(nth("sticky", i), vip(41, i), affinity(60))
		c.put(s, slice(s, 8080, ats(c.pods[1].IP4, c.remotes[1].IP4)...))
	}
	c.statusSays("REFUSED", "default/sticky:http", "TABLE_FULL")
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	before := c.status(t).Programming.Changes
	c.put(slice(plain, 8080, at(c.remotes[1].IP4)))
	c.awaitChanges(t, before+1)
	must(t, c.Settle())
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[1].Name)
	_, err = c.Vsctl("clear", "Bridge", c.Bridge, "flow_tables")
	must(t, err)
	c.settle()
	who, errs := c.pods[0].Many(c.ctx, 10, 2, "40.0.0.2:80")
	if len(who) != 1 || len(errs) > 0 {
		t.Errorf("the Service that was refused: reached %v, errors %v", who, errs)
	}
}

// UDP connections to an endpoint that is gone are forgotten: a client that keeps sending from one port is served by
// the endpoints left, or refused if there are none.
func TestStaleUDP(t *testing.T) {
	staleUDP(t, newCluster(t, testbed.Options{}))
}

func staleUDP(t *testing.T, c *cluster) {
	t.Helper()
	s := service("dns", "40.0.0.1", protocol(v1.ProtocolUDP))
	c.begin(s, slice(s, 8080, at(c.pods[1].IP4)))
	dial := func(port int) net.Conn {
		conn, err := c.pods[0].DialUDP(c.ctx, "40.0.0.1:80", testbed.DialOptions{LocalPort: port})
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	calm, busy := dial(5353), dial(5354)
	// soon waits until both clients are answered as wanted: by a pod, or, without one, by a refusal. Nothing waits for the datapath to
	// take a change up, and busy sends all the time: it meets the datapath as it was before.
	soon := func(what, want string) {
		t.Helper()
		for _, conn := range []net.Conn{busy, calm} {
			wait.NoError(t, what, func() error {
				_, err := conn.Write([]byte("?"))
				who, buf := "", make([]byte, 256)
				for err == nil { // the last answer counts
					must(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond))) // then it sends again
					var n int
					if n, err = conn.Read(buf); err == nil {
						who, _, _ = strings.Cut(string(buf[:n]), " ")
					}
				}
				if refused := errors.Is(err, syscall.ECONNREFUSED); want == "" && refused || want != "" && who == want && !refused {
					return nil
				}
				return fmt.Errorf("answered by %q, %w; want %q", who, err, want)
			})
		}
	}
	change := func(do func()) {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // ends with stop
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond): // so that it does not fill the switch
					busy.Write([]byte("?"))
				}
			}
		}()
		do()
		c.settle()
		close(stop)
		<-stopped
	}
	soon("at first", c.pods[1].Name)
	change(func() { c.put(slice(s, 8080, at(c.remotes[0].IP4))) })
	soon("after the endpoint moved", c.remotes[0].Name)
	change(func() { // the endpoint moves back while no nkp runs
		must(c.t, c.agent.Stop(syscall.SIGKILL))
		c.put(slice(s, 8080, at(c.pods[1].IP4)))
		c.run()
	})
	soon("after the endpoint moved while nkp was down", c.pods[1].Name)
	c.eventually("metrics of what was forgotten", func() error {
		s, err := c.scrape()
		if err != nil {
			return err
		}
		for series, least := range map[string]float64{
			`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"}`:       2, // of both clients
			`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"}`: 1,
			`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"}`: 1,
		} {
			if s.values[series] < least {
				return fmt.Errorf("%s is %v, want %v or more", series, s.values[series], least)
			}
		}
		return nil
	})
	change(func() { c.remove(slice(s, 8080)) })
	soon("without endpoints", "")
}

// Bad manifests: what was good stays in force, the rest is applied; log, status and plan name file and field.
func TestBadManifestsChangeNothing(t *testing.T) {
	nightly.Only(t, "the tests of package manifest read broken files")
	s := service("web", "40.0.0.1")
	c := start(t, s)
	const bad = "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: default}\n" +
		"spec: {clusterIP: 40.0.0.9, ports: [{port: eighty}]}\n"
	must(t, os.WriteFile(filepath.Join(c.dir, "bad.yaml"), []byte(bad), 0o644))
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.manifest = c.dir // from now on the whole directory
	c.run()
	c.logSays("bad.yaml", "spec.ports[0].port")
	c.statusSays("ERROR", "spec.ports[0].port")
	c.awaitAnswer(t, c.pods[0].Host, "40.0.0.1:80", c.remotes[0].Name)
	out, errOut, status := c.nkp("plan", "--manifests", c.dir)
	if status != 1 || !strings.Contains(errOut, "spec.ports[0].port") {
		t.Errorf("plan ends with %d: %s%s", status, tail(out, 500), tail(errOut, 2000))
	}
}
