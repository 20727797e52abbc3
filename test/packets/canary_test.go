//go:build linux

package packets

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// canaryPassed waits until canaries of both families have passed n more times.
func (c *cluster) canaryPassed(t *testing.T, n uint64) {
	t.Helper()
	before := map[string]uint64{}
	for _, v := range c.status(t).Canary {
		before[v.Plane+v.Family] = v.Sent["passed"]
	}
	c.eventually("canaries that pass", func() error {
		list := c.status(t).Canary
		for _, v := range list {
			if v.Fault != "" || v.Sent["passed"] < before[v.Plane+v.Family]+n {
				return fmt.Errorf("%+v", v)
			}
		}
		if len(list) == 0 {
			return errString("none")
		}
		return nil
	})
}

// canaryOf returns the bridge's verdict on a family.
func canaryOf(s *api.Status, family string) (v dataplane.CanaryVerdict) {
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

// On a node without Services canaries of both families pass the bridge, two packets each, leave no conntrack entry, and count for no
// Service. Nothing of them leaves by a port, nothing that comes in by a port to their addresses gets to nkp, and nkp diff stays empty. A
// restart of nkp or of the switch is no fault.
func TestCanary(t *testing.T) {
	for name, flags := range map[string][]string{"": nil, "table base": {"--table-base", "40"}} {
		t.Run(name, func(t *testing.T) {
			if flags != nil {
				nightly.Only(t, "the gate has table 0")
			}
			testCanary(t, flags...)
		})
	}
}

func testCanary(t *testing.T, flags ...string) {
	c := newCluster(t, testbed.Options{}, flags...)
	taps := []*tap{listen(t, c.External), listen(t, c.pods[1].Host)}
	c.begin()
	c.canaryPassed(t, 1)

	packets := func() (n, canaries uint64) {
		t.Helper()
		for _, v := range c.status(t).Canary {
			if v.Plane == "ovs" {
				canaries += v.Sent["passed"]
			}
		}
		out, err := c.Ofctl("dump-flows", c.Bridge, "in_port=CONTROLLER")
		must(t, err)
		for _, m := range regexp.MustCompile(`n_packets=(\d+).*actions=CONTROLLER`).FindAllStringSubmatch(out, -1) {
			k, err := strconv.ParseUint(m[1], 10, 64)
			must(t, err)
			n += k
		}
		return n, canaries
	}
	// An emulated machine is so slow that a canary's first datagram may be given up, and a second one sent.
	repeated := func(n, canaries uint64) bool { return onKernelDatapath() && n > 2*canaries }
	c.eventually("two packets for each canary", func() error { // the switch counts late
		if n, canaries := packets(); canaries < 2 || n != 2*canaries && !repeated(n, canaries) {
			return fmt.Errorf("%d packets for %d canaries", n, canaries)
		}
		return nil
	})

	// What pods send to the addresses is no canary.
	for _, ip := range canaryAddresses {
		c.sends(t, c.pods[0].Host, "udp", net.JoinHostPort(ip, "9")).close()
	}
	must(t, c.Settle())
	c.canaryPassed(t, 1)
	c.eventually("two packets for each canary, none of a pod's", func() error {
		if n, canaries := packets(); n != 2*canaries && !repeated(n, canaries) {
			return fmt.Errorf("%d packets for %d canaries", n, canaries)
		}
		return nil
	})

	for _, ip := range []string{"169.254.110.112", "fd6e:6b70:6e6b::70"} { // clients, of which each packet has the address
		for _, tap := range taps {
			if x := tap.of(t, ip); x.in.packets+x.out.packets > 1 { // the pod's own datagram, which the bridge floods
				t.Errorf("%s left the bridge: %+v", ip, x)
			}
		}
	}
	c.eventually("no conntrack entry", func() error {
		out, err := c.Appctl("dpctl/dump-conntrack")
		must(t, err)
		if strings.Contains(out, "src=169.254.110.112,") || strings.Contains(out, "src=fd6e:6b70:6e6b::70,") {
			return errString(out)
		}
		return nil
	})
	if out, _, _ := c.nkp("services", "-o", "json", "--socket", c.socket()); strings.Contains(out, "169.254") {
		t.Errorf("services: %s", out)
	}
	if err := c.differs(); err != nil {
		t.Error(err)
	}

	must(t, c.agent.Stop(syscall.SIGTERM))
	c.run()
	c.settle()
	c.canaryPassed(t, 1)
	must(t, c.RestartVswitchd())
	c.settle()
	c.canaryPassed(t, 1)
	for _, v := range c.status(t).Canary {
		if v.Sent["lost"]+v.Sent["full"] > 0 {
			t.Errorf("%+v", v)
		}
	}
}

// Whatever keeps Service packets from passing is named within three canaries: flows of others, flows of nkp's that others delete or change,
// again and again, because nkp repairs them (so that a canary may pass in between), and a conntrack table that is full. /healthz fails, except for a full table. Groups are repaired
// at once, before a canary meets the change.
func TestCanaryFaults(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	web := service("web", "40.0.0.1")
	c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
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
	appctl := func(args ...string) func() {
		return func() { _, err := c.Appctl(args...); must(t, err) }
	}

	limit := "limit=0"
	if onKernelDatapath() { // 0 is no limit there: one entry of a Service's takes all of the zone
		limit = "limit=1"
		c.keepOpen(t, c.pods[2].Host, "40.0.0.1:80")
	}
	const way4, down4 = "come to its Service's flow", "between table 1 and table 30"
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
		{name: "table 0 goes to table 30", apply: flows("table=0,udp,actions=resubmit(,30)"), says: "not translated"},
		{name: "table 0 loses the first half", apply: flows("table=0,udp,tp_dst=9,actions=drop"), says: way4},
		{name: "table 3 drops", apply: flows("table=3,ip,actions=drop"), says: way4},
		{name: "table 3 goes to table 2", apply: flows("table=3,ip,actions=resubmit(,2)"), says: way4},
		{name: "table 3 looks up another zone", apply: flows("table=3,ip,ct_state=-trk,actions=ct(table=1,zone=77,nat)"), says: "answer"},
		{name: "table 1 drops new", apply: flows("table=1,udp,ct_state=+new+trk,actions=drop"), says: way4},
		{name: "table 1 refuses", apply: flows("table=1,udp,ct_state=+new+trk,actions=resubmit(,13)"), says: "refused"},
		{name: "table 1 has another group", apply: func() {
			_, err := c.Ofctl("add-group", c.Bridge, "group_id=7,type=select,bucket=actions=drop")
			must(t, err)
			flows("table=1,udp,ct_state=+new+trk,actions=group:7")()
		}, says: way4},
		{name: "table 1 commits untranslated", apply: flows("table=1,udp,ct_state=+new+trk,actions=set_field:1->reg1,ct(commit,zone=1001,table=2)"), says: "not translated"},
		{name: "table 1 drops answers", apply: flows("table=1,ip,ct_state=+est+trk,actions=drop"), says: "answer is lost"},
		{name: "table 2 drops", apply: flows("table=2,ip,actions=drop"), says: down4},
		{name: "table 2 exits", apply: flows("table=2,ip,actions=NORMAL"), says: down4},
		{name: "table 30 drops", apply: flows("table=30,ip,actions=drop"), says: down4},
		{name: "table 30 drops IPv6", apply: flows("table=30,ipv6,actions=drop"), says: down4, family: "IPv6"},
		{name: "zone full", gate: true, apply: appctl("dpctl/ct-set-limits", "zone=1001,"+limit),
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
	} {
		t.Run(f.name, func(t *testing.T) {
			if !f.gate {
				nightly.Only(t, "the gate has a flow of others, a deleted flow of nkp's and a full zone")
			}
			if f.name == "table full" && onKernelDatapath() {
				t.Skip("the table of the kernel is full for /healthz, too; TestKernelConntrackFull fills it")
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

			c.awaitStatus(t, "a fault that is named", func(s *api.Status) bool { return canaryOf(s, family).Fault != "" })
			v := canaryOf(ptr(c.status(t)), family)
			after := v.FaultSince.Sub(begun)
			late := after > 3*dataplane.CanaryPeriod && !f.again && !onKernelDatapath() // an emulated machine is
			if late || !strings.Contains(v.Fault, f.says) || v.Full != f.full {
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
