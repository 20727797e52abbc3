//go:build linux

package packets

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// canaryPassed waits until canaries of both families have passed n more times.
func (c *cluster) canaryPassed(t *testing.T, n uint64) {
	t.Helper()
	before := map[string]uint64{}
	for _, v := range c.status(t).Canary {
		before[v.Plane+v.Family] = v.Sent.Passed
	}
	c.awaitStatus(t, "canaries that pass", func(s *agent.Status) bool {
		for _, v := range s.Canary {
			if v.Fault != "" || v.Sent.Passed < before[v.Plane+v.Family]+n {
				return false
			}
		}
		return len(s.Canary) > 0
	})
}

// canaryOf returns the bridge's verdict on a family.
func canaryOf(s *agent.Status, family string) (v dataplane.CanaryVerdict) {
	for _, v := range s.Canary {
		if v.Plane == "ovs" && v.Family == family {
			return v
		}
	}
	return v
}

// canaryAddresses are the addresses of canaries.
var canaryAddresses = []string{
	"169.254.110.112", "169.254.110.113", "169.254.110.114", "169.254.110.115",
	"fd6e:6b70:6e6b::70", "fd6e:6b70:6e6b::71", "fd6e:6b70:6e6b::72", "fd6e:6b70:6e6b::73",
}

// On a node without Services canaries of both families pass the bridge, leave no conntrack entry, and count for no Service. Nothing of them
// leaves by a port, and nothing that comes in by a port to their addresses gets to nkp. Neither does a restart of nkp disturb them, nor they
// nkp diff.
func TestCanary(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	taps := []*tap{listen(t, c.External), listen(t, c.pods[1].Host)}
	c.begin()
	c.canaryPassed(t, 1)
	s := c.status(t)
	if len(s.Canary) < 2 {
		t.Fatalf("%+v", s.Canary)
	}
	for _, ip := range canaryAddresses {
		for _, tap := range taps {
			if x := tap.of(t, ip); x != (traffic{}) {
				t.Errorf("%s left the bridge: %+v", ip, x)
			}
		}
	}
	out, err := c.Appctl("dpctl/dump-conntrack")
	must(t, err)
	for _, ip := range canaryAddresses {
		if strings.Contains(out, "="+ip+",") {
			t.Errorf("conntrack has %s:\n%s", ip, out)
		}
	}
	if out, _, _ := c.nkp("services", "-o", "json", "--socket", c.socket()); strings.Contains(out, "169.254") {
		t.Errorf("services: %s", out)
	}
	if err := c.differs(); err != nil {
		t.Error(err)
	}

	// What a pod sends to the frontend is no canary.
	before, err := c.Ofctl("dump-flows", c.Bridge, "table=1,udp,in_port=CONTROLLER")
	must(t, err)
	c.sends(t, c.pods[0].Host, "udp", "169.254.110.113:9").close()
	must(t, c.Settle())
	c.canaryPassed(t, 1)
	if n := strings.Count(before, "in_port=CONTROLLER"); n != 1 {
		t.Errorf("%d frontends:\n%s", n, before)
	}
	out, err = c.Ofctl("dump-flows", c.Bridge, "table=30,in_port=CONTROLLER")
	must(t, err)
	if !strings.Contains(out, "CONTROLLER:128") {
		t.Error(out)
	}

	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	c.canaryPassed(t, 1)
}

// Whatever keeps Service packets from passing is named within three canaries: flows of others, flows and groups of nkp's that others
// delete or change, again and again, because nkp repairs them, and a conntrack table that is full. /healthz fails, except for a full table.
func TestCanaryFaults(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	c.put()
	c.runWith("--healthz-data-path")
	c.settle()
	c.canaryPassed(t, 1)

	flows := func(list ...string) func() {
		return func() {
			for _, f := range list {
				_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,priority=500,"+f)
				must(t, err)
			}
		}
	}
	del := func(match string) func() {
		return func() { _, _ = c.Ofctl("del-flows", c.Bridge, "cookie=0x6e6b700000000000/0xffffff0000000000,"+match) }
	}
	mod := func(match, actions string) func() {
		return func() {
			_, _ = c.Ofctl("mod-flows", c.Bridge, "cookie=0x6e6b700000000000/0xffffff0000000000,"+match+",actions="+actions)
		}
	}
	groups := func(buckets string) func() {
		return func() {
			_, _ = c.Ofctl("mod-group", c.Bridge, "group_id=0x60000000,type=select,selection_method=dp_hash,"+buckets)
		}
	}
	appctl := func(args ...string) func() {
		return func() { _, err := c.Appctl(args...); must(t, err) }
	}

	const way4, into4, down4 = "come to its Service's flow", "table 0, 3 or 1", "between table 1 and table 30"
	for _, f := range []struct {
		name   string
		gate   bool
		apply  func()
		again  bool // nkp repairs it: it is applied again and again
		heal   func()
		says   string // one of them
		full   bool
		family string // of the verdict that is looked at
	}{
		{name: "table 0 drops", gate: true, apply: flows("table=0,ip,actions=drop"), says: way4},
		{name: "table 0 drops IPv6", apply: flows("table=0,ipv6,actions=drop"), says: way4, family: "IPv6"},
		{name: "table 0 goes past nkp", apply: flows("table=0,ip,actions=NORMAL"), says: way4},
		{name: "table 0 drops answers", apply: flows("table=0,udp,tp_src=9,actions=drop"), says: "answer is lost"},
		{name: "table 0 skips conntrack", apply: flows("table=0,udp,actions=resubmit(,1)"), says: into4},
		{name: "table 0 loses the first half", apply: flows("table=0,udp,tp_dst=9,actions=drop"), says: way4},
		{name: "table 3 drops", apply: flows("table=3,ip,actions=drop"), says: way4},
		{name: "table 3 skips conntrack", apply: flows("table=3,ip,actions=resubmit(,1)"), says: into4},
		{name: "table 3 looks up another zone", apply: flows("table=3,ip,ct_state=-trk,actions=ct(table=1,zone=77,nat)"), says: "answer"},
		{name: "table 1 drops new", apply: flows("table=1,udp,ct_state=+new+trk,actions=drop"), says: way4},
		{name: "table 1 refuses", apply: flows("table=1,udp,ct_state=+new+trk,actions=resubmit(,13)"), says: "refused"},
		{name: "table 1 drops answers", apply: flows("table=1,ip,ct_state=+est+trk,actions=drop"), says: "answer is lost"},
		{name: "table 2 drops", apply: flows("table=2,ip,actions=drop"), says: down4},
		{name: "table 2 exits", apply: flows("table=2,ip,actions=NORMAL"), says: down4},
		{name: "table 30 drops", apply: flows("table=30,ip,actions=drop"), says: down4},
		{name: "table 30 drops IPv6", apply: flows("table=30,ipv6,actions=drop"), says: down4, family: "IPv6"},
		{name: "entries flushed", again: true, apply: appctl("dpctl/flush-conntrack", "zone=1001"), says: "answer"},
		{name: "zone full", gate: true, apply: appctl("dpctl/ct-set-limits", "zone=1001,limit=0"),
			heal: appctl("dpctl/ct-del-limits", "zone=1001"), says: "full", full: true},
		{name: "table full", apply: appctl("dpctl/ct-set-maxconns", "0"), heal: appctl("dpctl/ct-set-maxconns", "3000000"), says: "full", full: true},
		{name: "table 0 deleted", again: true, apply: del("table=0,ip"), says: way4},
		{name: "table 3 deleted", again: true, apply: del("table=3"), says: way4},
		{name: "Service's flow deleted", gate: true, again: true, apply: del("table=1,udp,in_port=CONTROLLER"), says: "missing"},
		{name: "table 1 deleted", again: true, apply: del("table=1"), says: ""},
		{name: "table 2 deleted", again: true, apply: del("table=2"), says: down4},
		{name: "table 30 deleted", again: true, apply: del("table=30"), says: "table 30"},
		{name: "established changed", again: true, apply: mod("table=1,ct_state=-new+trk", "drop"), says: "answer"},
		{name: "table 2 changed", again: true, apply: mod("table=2", "drop"), says: down4},
		{name: "group emptied", again: true, apply: groups("bucket=actions=drop"), says: down4},
		{name: "group does not translate", again: true, apply: groups("bucket=actions=ct(commit,zone=1001,table=2)"), says: "not translated"},
		{name: "group deleted", again: true, apply: func() { _, _ = c.Ofctl("del-groups", c.Bridge, "group_id=0x60000000") }, says: ""},
	} {
		t.Run(f.name, func(t *testing.T) {
			if !f.gate {
				nightly.Only(t, "the gate has a flow of others, a deleted flow of nkp's and a full zone")
			}
			family := f.family
			if family == "" {
				family = "IPv4"
			}

			var injecting sync.WaitGroup
			stop := make(chan struct{})
			begun := time.Now()
			f.apply()
			if f.again {
				injecting.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
							f.apply()
						}
					}
				})
			}

			c.awaitStatus(t, "a fault that is named", func(s *agent.Status) bool { return canaryOf(s, family).Fault != "" })
			v := canaryOf(ptr(c.status(t)), family)
			after := v.FaultSince.Sub(begun)
			if after > 3*dataplane.CanaryPeriod || !strings.Contains(v.Fault, f.says) || v.Full != f.full {
				t.Errorf("after %v: %+v; want %q, full %v", after, v, f.says, f.full)
			}
			t.Logf("after %.1f s: %s", after.Seconds(), v.Fault)
			want := 503
			if f.full {
				want = 200
			}
			if got, body, err := c.get(c.Node, "http://127.0.0.1:10256/healthz"); err != nil || got != want {
				t.Errorf("/healthz: %d, %v; want %d\n%s", got, err, want, body)
			}

			close(stop)
			injecting.Wait()
			if f.heal != nil {
				f.heal()
			}
			_, err := c.Ofctl("del-flows", c.Bridge, "cookie=0x77/-1")
			must(t, err)
			c.canaryPassed(t, 1)
			if got, body, err := c.get(c.Node, "http://127.0.0.1:10256/healthz"); err != nil || got != 200 {
				t.Errorf("/healthz afterwards: %d, %v\n%s", got, err, body)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }
