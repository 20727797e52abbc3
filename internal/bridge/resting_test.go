package bridge

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
)

// A scan looks for ids that rest long enough, counted from when each was first seen with all changes on the switch, and not from before
// it came back.
func TestRestingIDs(t *testing.T) {
	c, err := pipeline.NewCompiler(pipeline.Config{Layout: pipeline.DefaultLayout()})
	if err != nil {
		t.Fatal(err)
	}
	sp := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: "TCP", Family: k8s.IPv4}}
	set := func(sp *k8s.ServicePort, n k8s.PortName) { c.Update(map[k8s.PortName]*k8s.ServicePort{n: sp}) }
	var r restingIDs
	start := time.Unix(1_000_000, 0)
	settled := true
	check := func(after time.Duration, want int) {
		t.Helper()
		if got := r.begin(c, settled, start.Add(after)); len(got) != want || r.free != nil {
			t.Errorf("after %v: %v are looked for, %v are free", after, slices.Collect(maps.Keys(got)), r.free)
		}
	}
	set(sp, sp.Name)
	check(0, 0)
	set(nil, sp.Name)
	check(time.Second, 0)
	check(leastRest, 0)
	check(leastRest+time.Second, 1)
	set(sp, sp.Name)
	check(leastRest+2*time.Second, 0)
	set(nil, sp.Name)
	check(2*leastRest, 0)
	check(3*leastRest-time.Second, 0)
	check(3*leastRest, 1)
	settled = false // its deletion is not on the switch, as after a lost connection
	check(4*leastRest, 0)
	settled = true
	check(4*leastRest+time.Second, 0)
	check(5*leastRest+time.Second, 1)
}
