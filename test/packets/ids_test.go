//go:build linux

package packets

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// hashedID is what the id of a Service's port http is made from.
func hashedID(s *v1.Service) uint32 {
	n := k8s.PortName{
		ServiceName: k8s.ServiceName{Namespace: s.Namespace, Name: s.Name}, Port: "http",
		Protocol: k8s.Protocol(s.Spec.Ports[0].Protocol), Family: k8s.IPv4,
	}
	h := fnv.New32a()
	h.Write([]byte(n.ID()))
	return h.Sum32() % (1<<22 - 1)
}

// colliding returns a Service of another namespace whose name has the same hash as that of s, and comes before it.
func colliding(s *v1.Service, clusterIP string) *v1.Service {
	other := service("", clusterIP, protocol(s.Spec.Ports[0].Protocol))
	other.Namespace = "a-tenant"
	for i := 0; ; i++ {
		if other.Name = fmt.Sprint("s", i); hashedID(other) == hashedID(s) {
			return other
		}
	}
}

// A tenant makes and deletes Services whose names have the same hash as other Services', also while no nkp runs. Connections to
// those are served by their own pods, nothing of theirs on the switch is touched, and no client of session affinity is
// forgotten. At last such a name gets the cluster IP of a Service that was deleted, and still not its id.
func TestTenantTakesNoID(t *testing.T) {
	c := newCluster(t, testbed.Options{Standalone: true})
	c.servePods(t)
	web, sticky := service("web", "40.0.0.1"), service("sticky", "40.0.0.2", affinity(3600))
	own := []netip.Addr{c.pods[1].IP4, c.pods[2].IP4}
	foreign := []netip.Addr{c.remotes[0].IP4, c.remotes[1].IP4}
	c.put(web, slice(web, 8080, ats(own...)...), sticky, slice(sticky, 8080, ats(own...)...))
	tenant := []any{}
	for i, s := range []*v1.Service{web, sticky} {
		s := colliding(s, vip(40, 100+i))
		tenant = append(tenant, s, slice(s, 8080, ats(foreign...)...))
	}
	c.run()
	c.settle()
	pinned, err := c.pods[0].Ask(c.ctx, "tcp", "40.0.0.2:80")
	must(t, err)
	installed := c.installedFor(t, web, sticky)

	if nightly.Is() {
		c.cacheFlows(t, c.pods[0], 10_000)
	}

	toggles, connections := nightly.Count(4, 200), nightly.Count(100, 2500)
	here := map[string]bool{c.pods[1].Name: true, c.pods[2].Name: true}
	for i := range toggles {
		stopped := i%3 == 2
		if stopped {
			must(t, c.agent.Stop(syscall.SIGTERM))
		}
		change := c.put
		if i%2 == 1 {
			change = c.remove
		}
		change(tenant...)
		if stopped {
			c.run()
		}
		who, errs := c.pods[0].Many(c.ctx, connections, 8, "40.0.0.1:80") // while the change comes
		c.settle()
		more, moreErrs := c.pods[0].Many(c.ctx, connections, 8, "40.0.0.1:80")
		maps.Copy(who, more)
		for pod := range who {
			if !here[pod] {
				t.Errorf("toggle %d: a pod of the tenant, %s, served connections to another's Service", i, pod)
			}
		}
		if errs = append(errs, moreErrs...); len(errs) > 0 {
			t.Errorf("toggle %d: %d connections failed; the first: %v", i, len(errs), errs[0])
		}
		if a, err := c.pods[0].Ask(c.ctx, "tcp", "40.0.0.2:80"); err != nil || a.Pod != pinned.Pod {
			t.Errorf("toggle %d: a client of session affinity went from %s to %s (%v)", i, pinned.Pod, a.Pod, err)
		}
		if now := c.installedFor(t, web, sticky); now != installed {
			t.Fatalf("toggle %d changed other Services' objects from\n%s\nto\n%s", i, installed, now)
		}
	}

	// The victim is deleted while no nkp runs, and the tenant's Service gets its cluster IP.
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.remove(tenant...)
	c.remove(web)
	heir := colliding(web, "40.0.0.1")
	heir.Name = "heir"
	c.put(heir, slice(heir, 8080, ats(foreign...)...))
	c.run()
	c.settle()
	group := c.groupOf(t, web)
	if out, err := c.Ofctl("dump-groups", c.Bridge); err != nil || strings.Contains(out, group) {
		t.Errorf("another Service has the group of one that is gone, %s (%v):\n%s", group, err, out)
	}
	if n := c.status(t).RestingIDs; n == 0 {
		t.Error("no id rests")
	}
}

// cacheFlows gives the switch n cached flows, by packets of the pod that no flow of nkp's sees. The more there are, the longer one goes on
// by what its packets found before a change.
func (c *cluster) cacheFlows(t *testing.T, from *testbed.Pod, n int) {
	t.Helper()
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=3600000")
	must(t, err)
	_, err = c.Ofctl("add-flow", c.Bridge, fmt.Sprintf("priority=65000,in_port=%d,udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG5[]", from.OFPort))
	must(t, err)
	f := newForger(t, from, netip.MustParseAddrPort("40.0.0.1:80"))
	wait.NoError(t, "the cached flows", func() error {
		for i := range n {
			must(t, f.send(11<<24+uint32(i)))
		}
		out, err := c.Appctl("upcall/show")
		must(t, err)
		if m := regexp.MustCompile(`\(current (\d+)\)`).FindStringSubmatch(out); m == nil || len(m[1]) < len(fmt.Sprint(n)) {
			return fmt.Errorf("too few:\n%s", out)
		}
		return nil
	})
}

// groupOf is how a group of a Service's would begin if its id were that of its name's hash.
func (c *cluster) groupOf(_ *testing.T, s *v1.Service) string {
	return fmt.Sprintf("group_id=%d,", 0x60000000+(hashedID(s)+1)<<6)
}

// installedFor returns the flows and groups of Services that have the id of their name's hash, without pins and counters.
func (c *cluster) installedFor(t *testing.T, services ...*v1.Service) string {
	t.Helper()
	flows, err := c.Ofctl("dump-flows", "--no-stats", c.Bridge)
	must(t, err)
	groups, err := c.Ofctl("dump-groups", c.Bridge)
	must(t, err)
	var lines []string
	for line := range strings.Lines(flows + groups) {
		for _, s := range services {
			id := hashedID(s) + 1
			if strings.Contains(line, fmt.Sprintf("cookie=%#x,", 0x6e6b7001<<32|uint64(id))) || strings.Contains(line, fmt.Sprintf("group_id=%d,", 0x60000000+id<<6)) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(lines)
	if len(lines) < 6 {
		t.Fatalf("only %q", lines)
	}
	return strings.Join(lines, "\n")
}

// The id of a Service that is gone rests as long as a connection through it is open, across a restart of nkp, and no longer.
func TestIDsRestWhileConnectionsLast(t *testing.T) {
	nightly.Only(t, "an id rests for half a minute at least; TestRestingIDs and pipeline's TestIDsNeverPass are in the gate")
	c := newCluster(t, testbed.Options{Standalone: true})
	c.servePods(t)
	s, plain := service("web", "40.0.0.1"), service("plain", "40.0.0.2")
	c.put(s, slice(s, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...), plain, slice(plain, 8080, ats(c.pods[1].IP4, c.pods[2].IP4)...))
	c.runWith("--audit-period", "1s")
	c.settle()
	held := c.sends(t, c.pods[0].Host, "tcp", "40.0.0.1:80")
	held.who(t)
	c.remove(s, plain)
	c.settle()
	if n := c.status(t).RestingIDs; n != 2 {
		t.Errorf("%d ids rest; want 2", n)
	}
	c.awaitStatus(t, "the id without connections is free", func(s *api.Status) bool { return s.RestingIDs == 1 })
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.runWith("--audit-period", "1s")
	c.settle()
	if n := c.status(t).RestingIDs; n != 1 {
		t.Errorf("after a restart %d ids rest; want 1", n)
	}
	held.close()
	c.flush()
	wait.NoError(t, "the other id is free", func() error {
		if n := c.status(t).RestingIDs; n != 0 {
			return fmt.Errorf("%d rest", n)
		}
		return nil
	})
}
