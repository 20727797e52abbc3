package windows

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// The load balancers of a Service are listed alone, all of nkp's together, and nothing is asked of HNS. During a sync there is no answer.
func TestList(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.simple("other", "10.99.0.2", "100.244.1.1")
	b.good()
	list := func(of k8s.PortName) (texts []string) {
		t.Helper()
		to := dataplane.Listing{Most: 10}
		must(t, b.plane.List(t.Context(), of, &to))
		for _, o := range to.Objects {
			texts = append(texts, o.Text)
		}
		return texts
	}
	if all := list(k8s.PortName{}); len(all) != 2 {
		t.Errorf("all: %q", all)
	}
	for name := range b.plane.ports {
		if one := list(name); len(one) != 1 || !strings.Contains(one[0], map[string]string{"web": "10.99.0.1", "other": "10.99.0.2"}[name.Name]) {
			t.Errorf("%s: %q", name, one)
		}
	}
	if none := list(k8s.PortName{Port: "none"}); len(none) != 0 {
		t.Errorf("%q", none)
	}
	if calls := b.hns.Calls(); len(calls) != 0 {
		t.Errorf("HNS was asked: %v", calls)
	}

	b.plane.runner.Lock()
	defer b.plane.runner.Unlock()
	if err := b.plane.List(t.Context(), k8s.PortName{}, &dataplane.Listing{Most: 1}); err == nil {
		t.Error("it was listed during a sync")
	}
}
