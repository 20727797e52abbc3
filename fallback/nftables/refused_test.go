//go:build linux

package nftables

import (
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A Service port that the kernel refuses delays no other, keeps what is installed of it, is named, and is served once it is well.
func TestRefusedService(t *testing.T) {
	testbed.Linux.Require(t)
	testbed.Isolate(t)
	o := fallback.DefaultOptions()
	o.LocalhostNodePorts, o.Log = false, slog.New(slog.DiscardHandler)
	var refused []dataplane.Refusal
	o.Hooks.Refused = func(r dataplane.Refusal) { refused = append(refused, r) }
	o.Hooks.Hooks = o.Hooks.WithDefaults()
	status := new(fallback.FamilyStatus)
	in := dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
	w, err := newWorker(testWorker(&o, in, status), Settings{}, &netlink.Group{})
	must(t, err)
	defer w.close()
	m := shapes.Many(20)
	step := func(c k8s.Changes) {
		in.Put(m, c)
		w.NotUntil = time.Time{}
		w.Round(t.Context(), w)
	}
	listed := func(set string) string {
		out, err := exec.Command("nft", "list", "map", "ip", "nkp", set).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	bad := shapes.Name(7)
	well := m.Ports[bad]
	spoilt := *well
	spoilt.ClusterEndpoints = []k8s.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::1]:80")}} // too long for the map
	m.Ports[bad] = &spoilt
	step(m.Everything()) // in the first sync
	if len(refused) != 1 || refused[0].Port != bad || status.Services != 19 || !status.InStep || len(status.Refused) != 1 || status.LastError == "" {
		t.Errorf("after the first sync: %+v, %+v", refused, status)
	}
	if n := strings.Count(listed("services"), "goto cluster-ip"); n != 19 {
		t.Errorf("%d Services are served", n)
	}
	one := func(n k8s.PortName, sp *k8s.ServicePort) k8s.Changes {
		m.Ports[n] = sp
		return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{n: sp}}
	}
	step(one(bad, well))
	if status.Services != 20 || len(status.Refused) != 0 || status.LastError != "" {
		t.Errorf("once it is well: %+v", status)
	}
	before := listed("endpoints")
	c := one(bad, &spoilt)
	other := *m.Ports[shapes.Name(3)]
	other.ClusterEndpoints = other.ClusterEndpoints[:5]
	c.Ports[other.Name] = &other
	m.Ports[other.Name] = &other
	step(c) // beside a change of another
	if len(refused) < 2 || len(status.Refused) != 1 || status.Repairs != 0 {
		t.Errorf("refused later: %+v, %+v", refused, status)
	}
	after := listed("endpoints")
	vip := func(i int) string { return shapes.VIP(i).String() + " . tcp" }
	if strings.Count(after, vip(7)) != shapes.Endpoints || strings.Count(after, vip(3)) != 5 || strings.Count(before, vip(3)) != shapes.Endpoints {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	w.unknown = true
	w.Round(t.Context(), w)
	if s := listed("endpoints"); strings.Count(s, vip(7)) != shapes.Endpoints {
		t.Errorf("a read-back before it is tried again removes it:\n%s", s)
	}
	attempts := 0
	again := func() {
		for _, r := range w.Refused.All() { // the pause is over
			w.Refused.Refuse(bad, r, time.Now().Add(-2*dataplane.RetryMost))
		}
		attempts, w.NotUntil = len(refused), time.Time{}
		w.Round(t.Context(), w)
	}
	if again(); len(refused) != attempts+1 {
		t.Errorf("tried again %d times after its pause", len(refused)-attempts)
	}
	// The kernel accepts it although no update came, as once memory is free again. It has one endpoint less than is installed, so that
	// its elements suit those that are there, and only a read-back finds the one to delete.
	fewer := *well
	fewer.ClusterEndpoints = fewer.ClusterEndpoints[:shapes.Endpoints-1]
	w.want[bad] = &fewer
	again()
	if n := strings.Count(listed("endpoints"), vip(7)); n != shapes.Endpoints-1 || len(status.Refused) != 0 {
		t.Errorf("accepted when tried again: %d endpoints are installed of %d, %+v", n, shapes.Endpoints-1, status)
	}
	step(one(bad, &spoilt)) // and refused anew
	step(one(bad, nil))
	if s := listed("services"); strings.Contains(s, vip(7)) || len(status.Refused) != 0 {
		t.Errorf("deleted, and still there:\n%s", s)
	}
	audits := status.Audits
	wait.For(t, "a read-back that the kernel does not interrupt", func() bool { // it does while a table of its own grows
		w.CheckAt = time.Now()
		w.Round(t.Context(), w)
		return status.Audits > audits || status.LastRepair != nil
	})
	if status.LastRepair != nil {
		t.Errorf("a read-back does not find everything as installed: %+v", status.LastRepair)
	}
}

// testWorker is a worker's common part, which reports to status.
func testWorker(o *fallback.Options, in *dataplane.Inbox, status *fallback.FamilyStatus) *fallback.Worker {
	w := fallback.NewWorker("nftables", k8s.IPv4, o, in)
	w.Report = func(change func(*fallback.FamilyStatus)) { change(status) }
	return w
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
