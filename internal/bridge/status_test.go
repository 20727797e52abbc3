package bridge

import (
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// While flows of before a start are still to be deleted, what was handed over is not said to be in force: they may lead to what is gone.
func TestWaitsForSurplus(t *testing.T) {
	p := &Plane{in: dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)}
	if !p.waits(time.Now()) {
		t.Error("nothing was handed over, and it is in force")
	}
	p.in.Put(&k8s.Model{}, k8s.Changes{Node: true})
	p.in.Take()
	p.in.Settled()
	if p.waits(time.Now()) {
		t.Error("all is in force, and waited for")
	}
	p.prog.surplus = map[flow.Key]*flow.Flow{{}: {}}
	if !p.waits(time.Now()) {
		t.Error("unwanted flows are not waited for")
	}
}
