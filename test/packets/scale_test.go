//go:build linux

package packets

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// scaleLong, if set in the environment, makes TestManyServices use 10,000 Services, and measure.
const scaleLong = "NKP_SCALE_LONG"

// 2,000 Services (see scaleLong) with 10 endpoints each, from a manifest file: the first programming is one transaction of all objects,
// and a change of one endpoint later sets as many flows and groups as it would without the other Services. With scaleLong the first
// programming is measured against ovs-ofctl with the same objects, in turns on one switch; the ratio of the best rounds counts.
func TestManyServices(t *testing.T) {
	services, rounds := 10_000, 3
	if os.Getenv(scaleLong) == "" {
		nightly.Only(t, "it is large")
		services, rounds = 2_000, 1
	}
	c := newCluster(t, testbed.Options{}, "--cluster-cidr", "10.0.0.0/8")
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
	c.servePods(t)
	var ours, theirs []float64
	for round := range rounds {
		if rounds > 1 {
			theirs = append(theirs, c.bundled(t))
		}
		c.run()
		c.settle()
		st := c.status(t)
		if st.Programming.First == nil || st.Programming.First.Objects < 2*services {
			t.Fatalf("first transaction: %+v", st.Programming.First)
		}
		ours = append(ours, st.Programming.First.Milli)
		if round < rounds-1 {
			must(c.t, c.agent.Stop(syscall.SIGTERM))
			c.cleanup(t)
		}
	}
	if rounds > 1 {
		t.Logf("first programming: nkp %.0f ms, ovs-ofctl %.0f ms (best of %d in turns); ratio %.2f", slices.Min(ours), slices.Min(theirs), rounds, slices.Min(ours)/slices.Min(theirs))
	}
	objects := func() (n float64) {
		t.Helper()
		s, err := c.scrape()
		must(t, err)
		for _, kind := range []string{"flow", "group"} {
			n += s.values[`nkp_transaction_objects_total{object="`+kind+`"}`]
		}
		return n
	}

	// One of ten endpoints changes, again and again.
	const changes, most = 20, 5 // objects of one: the group, which holds its endpoints
	before, begun := c.status(t).Programming.Changes, objects()
	s := service(nth("svc", 77), vip(40, 77))
	for i := range changes {
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
	each := (objects() - begun) / changes
	st := c.status(t).Programming
	t.Logf("a change of one endpoint at %d Services sets or deletes %.1f flows and groups; in the channel p50 %.3f ms, p99 %.3f ms; from the source's report p50 %.3f ms, p99 %.3f ms; resident %d MB",
		services, each, st.ChannelP50Milli, st.ChannelP99Milli, st.P50Milli, st.P99Milli, c.resident(t))
	if each < 1 || each > most {
		t.Errorf("a change of one endpoint sets or deletes %.1f flows and groups, want %d at most", each, most)
	}
	c.objects["e"+s.Name] = slice(s, 8080, at(c.pods[0].IP4), at(c.remotes[0].IP4))
	c.write()
	c.awaitChanges(t, before+changes+1)
	c.reachable(t, vip(40, 77)+":80")
}

// bundled returns how many milliseconds ovs-ofctl takes to install what nkp would, on a bridge of its own, which is emptied again.
func (c *cluster) bundled(t *testing.T) float64 {
	t.Helper()
	const bridge = "br-two"
	if _, err := c.Vsctl("br-exists", bridge); err != nil {
		must(t, c.AddBridge(bridge))
	}
	took := c.install(t, bridge)
	for _, what := range []string{"del-groups", "del-flows"} {
		_, err := c.Ofctl(what, bridge)
		must(t, err)
	}
	return float64(took.Microseconds()) / 1000
}

// awaitChanges waits until nkp has programmed n changes since its start.
func (c *cluster) awaitChanges(t *testing.T, n int) {
	t.Helper()
	c.awaitStatus(t, fmt.Sprint("change ", n), func(s *api.Status) bool { return s.Programming.Changes >= n })
}

// resident returns nkp's resident memory in MB.
func (c *cluster) resident(t *testing.T) int {
	t.Helper()
	return residentOf(t, c.agent.Cmd.Process.Pid)
}

// residentOf returns the resident memory of a process in MB.
func residentOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return kb >> 10
}
