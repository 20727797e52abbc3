//go:build linux

package packets

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Another owner's flow with the table, priority and match of one of nkp's is reported, not replaced, whenever it comes.

// refusedFor waits until status says that a Service waits for the sake of a flow with this cookie.
func (c *cluster) refusedFor(t *testing.T, service, cookie string) {
	t.Helper()
	c.statusSays("REFUSED", service, "cookie="+cookie)
}

// stays checks that the flow is as it was.
func (c *cluster) stays(t *testing.T, when, cookie string) {
	t.Helper()
	out, err := c.Ofctl("dump-flows", c.Bridge, "cookie="+cookie+"/-1")
	if err != nil || !strings.Contains(out, "actions=drop") {
		t.Errorf("%s: the other owner's flow is gone: %s %v", when, out, err)
	}
}

func TestForeignFlowBeforeAChange(t *testing.T) {
	const match = "table=1,priority=300,ct_state=-est-rel-inv,tcp,nw_dst=40.0.0.1,tp_dst=80"
	mine, other := service("mine", "40.0.0.1"), service("other", "40.0.0.2")
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs")
	c.begin(other, slice(other, 8080))
	put := func(cookie, match string) {
		t.Helper()
		_, err := c.Ofctl("add-flow", c.Bridge, "cookie="+cookie+","+match+",actions=drop")
		must(t, err)
	}
	take := func(match string) {
		t.Helper()
		_, err := c.Ofctl("--strict", "del-flows", c.Bridge, match)
		must(t, err)
	}
	client, end := c.pods[0].Host, c.remotes[0]

	// One goes and one comes: what the tables hold is as many as before.
	put("0x70", "table=1,priority=300,tcp,nw_dst=40.0.9.9,tp_dst=80")
	c.settle()
	take("table=1,priority=300,tcp,nw_dst=40.0.9.9,tp_dst=80")
	put("0x77", match)
	c.put(mine, slice(mine, 8080, at(end.IP4)), slice(other, 8080, at(end.IP4)))
	c.refusedFor(t, "default/mine:http", "0x77")
	c.stays(t, "before the Service came", "0x77")
	c.awaitAnswer(t, client, "40.0.0.2:80", end.Name) // another Service's change
	take(match)
	c.awaitAnswer(t, client, "40.0.0.1:80", end.Name)
	c.settle()

	// It replaces nkp's own.
	put("0x78", match)
	// The policy changes the frontend's actions, not its match. Without endpoints it would have another priority.
	local := mine.DeepCopy()
	internalLocal(local)
	c.put(local, slice(mine, 8080, at(c.pods[1].IP4)))
	c.refusedFor(t, "default/mine:http", "0x78")
	c.stays(t, "over nkp's own", "0x78")
	c.remove(mine)
	c.statusMatches(false, "REFUSED") // the Service that is gone does not wait
	c.stays(t, "after the Service went", "0x78")
	c.put(mine, slice(mine, 8080, at(end.IP4)))
	c.refusedFor(t, "default/mine:http", "0x78")
	c.stays(t, "after the Service came back", "0x78")
	take(match)
	c.awaitAnswer(t, client, "40.0.0.1:80", end.Name)
	c.settle()
}

// The same for a flow that many Services share, which is none of one Service's.
func TestForeignFlowInPlaceOfASharedOne(t *testing.T) {
	nightly.Only(t, "TestForeignFlowBeforeAChange has foreign flows in place of a Service's")
	const guard = "table=1,priority=200,ct_state=+new+trk,tcp,nw_dst=10.0.1.0/24,tp_dst=8080"
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs", "--port-reuse-guards")
	c.begin(s)
	_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,"+guard+",actions=drop")
	must(t, err)
	c.put(slice(s, 8080, at(c.remotes[0].IP4)))
	c.refusedFor(t, "", "0x77")
	c.stays(t, "a guard", "0x77")
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[0].Name)
	_, err = c.Ofctl("--strict", "del-flows", c.Bridge, guard)
	must(t, err)
	c.settle()
	if out, _ := c.Ofctl("dump-flows", c.Bridge, strings.Replace(guard, "priority=200,", "", 1)); !strings.Contains(out, "cookie=0x6e6b70") {
		t.Errorf("the guard did not come: %s", out)
	}
}
