//go:build linux

package packets

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// scaleLong, if set in the environment, makes TestManyServices use 10,000 Services.
const scaleLong = "NKP_SCALE_LONG"

// 2,000 Services (see scaleLong) with 10 endpoints each, from a manifest file: the first programming against ovs-ofctl
// with the same objects, in turns on one switch; and what one endpoint change costs then. The ratio of the best rounds is
// what counts, as other load only ever adds. With 2,000 Services a round takes a tenth of a second, so that the packages
// tested beside this one reach all three: the limit is wider there. The limit on the time of a change is a guard against
// changes that cost what all Services cost (a second at 10,000), wide enough for a busy machine; on an idle one it takes
// half a millisecond.
func TestManyServices(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--cluster-cidr", "10.0.0.0/8")
	services, limit, channel := 2_000, 1.5, 30.0 // ms, on a busy machine
	if os.Getenv(scaleLong) != "" {
		services, limit, channel = 10_000, 0.8, 2
	}
	for i := range services {
		s := service(nth("svc", i), vip(40, i))
		es := make([]discoveryv1.Endpoint, 10)
		for e := range es {
			es[e] = at(testbed.NodeIP4)
			es[e].Addresses[0] = vip(10, (i*10+e)%60_000)
		}
		c.objects[s.Name], c.objects["e"+s.Name] = s, slice(s, 8080, es...)
	}
	c.write()
	must(t, c.AddBridge("br-two"))
	c.servePods(t)

	plan, errOut, status := c.nkp(append([]string{"plan", "-o", "ofctl"}, c.common()...)...)
	if status != 0 {
		t.Fatalf("plan ends with %d: %s", status, tail(errOut, 1000))
	}
	file := filepath.Join(c.dir, "plan.txt")
	must(t, os.WriteFile(file, []byte(plan), 0o644))
	for line := range strings.Lines(plan) {
		if m, ok := strings.CutPrefix(line, "# meter "); ok {
			_, err := c.Ofctl("add-meter", "br-two", strings.TrimSpace(m))
			must(t, err)
		}
	}
	var ours, theirs []float64
	for round := range 3 {
		began := time.Now()
		_, err := c.Ofctl("bundle", "br-two", file)
		must(t, err)
		theirs = append(theirs, time.Since(began).Seconds()*1000)
		_, err = c.Ofctl("del-groups", "br-two")
		must(t, err)
		_, err = c.Ofctl("del-flows", "br-two")
		must(t, err)

		c.run()
		c.settle()
		st := c.status(t)
		if st.Programming.First == nil || st.Programming.First.Objects < 2*services {
			t.Fatalf("first transaction: %+v", st.Programming.First)
		}
		ours = append(ours, st.Programming.First.Milli)
		if round < 2 {
			must(c.t, c.agent.Stop(syscall.SIGTERM))
			if _, errOut, status := c.nkp("cleanup", "--ovsdb", c.DB(), "--bridge", c.Bridge, "--socket", c.socket()); status != 0 {
				t.Fatalf("cleanup: %s", errOut)
			}
		}
	}
	ratio := slices.Min(ours) / slices.Min(theirs)
	t.Logf("first programming: nkp %.0f ms, ovs-ofctl %.0f ms (best of 3 in turns); ratio %.2f", slices.Min(ours), slices.Min(theirs), ratio)
	if ratio > limit {
		t.Errorf("ratio %.2f is above %.1f", ratio, limit)
	}

	// One of ten endpoints changes, again and again.
	before := c.status(t).Programming.Changes
	s := service(nth("svc", 77), vip(40, 77))
	for i := range 20 {
		es := []discoveryv1.Endpoint{at(c.pods[i%2].IP4), at(c.remotes[0].IP4)}
		for e := range 8 {
			other := at(testbed.NodeIP4)
			other.Addresses[0] = vip(10, 770+e)
			es = append(es, other)
		}
		c.objects["e"+s.Name] = slice(s, 8080, es...)
		c.write()
		c.awaitChanges(t, before+i+1)
	}
	st := c.status(t)
	t.Logf("one endpoint change at %d Services: in the channel p50 %.3f ms, p99 %.3f ms; from the source's report p50 %.3f ms, p99 %.3f ms; resident %d MB",
		services, st.Programming.ChannelP50Milli, st.Programming.ChannelP99Milli, st.Programming.P50Milli, st.Programming.P99Milli, c.resident(t))
	if st.Programming.ChannelP50Milli > channel {
		t.Errorf("p50 of %.3f ms in the channel, want %.0f ms at most", st.Programming.ChannelP50Milli, channel)
	}
	c.objects["e"+s.Name] = slice(s, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4))
	c.write()
	c.awaitChanges(t, before+21)
	c.reachable(t, vip(40, 77)+":80")
}

// status asks the running nkp.
func (c *cluster) status(t *testing.T) agent.Status {
	t.Helper()
	out, errOut, status := c.nkp("status", "-o", "json", "--socket", c.socket())
	if status != 0 {
		t.Fatalf("status ends with %d: %s", status, errOut)
	}
	var st agent.Status
	must(t, json.Unmarshal([]byte(out), &st))
	return st
}

func (c *cluster) awaitChanges(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(settleLimit); c.status(t).Programming.Changes < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("change %d was not programmed within %v", n, settleLimit)
		}
	}
}

// resident returns nkp's resident memory in MB.
func (c *cluster) resident(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(c.agent.Cmd.Process.Pid)).Output()
	must(t, err)
	kb := 0
	for _, d := range strings.TrimSpace(string(out)) {
		kb = kb*10 + int(d-'0')
	}
	return kb >> 10
}
