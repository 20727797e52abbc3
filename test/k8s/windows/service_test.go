//go:build linux

package windows

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// The life of a Windows service: installed with recovery actions, started and stopped by the Service Control Manager, removed.
// Wine ends its services when no other program runs; pipeproxy does all the time.
func TestService(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.ForServices()
	h.service = true
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	flags := h.args()[1:]

	if out, err := h.nkp("windows-service", "install", "--", "--network-nam", "Calico"); exitStatus(err) != 2 || !strings.Contains(out, "could not start") {
		t.Errorf("install with a flag that run does not have: %v\n%s", err, out)
	}
	install := append([]string{"install", "--depends-on=", "--"}, flags...) // there is no service hns here
	if out, err := h.nkp("windows-service", install...); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	if out, err := h.nkp("windows-service", install...); exitStatus(err) != 1 || !strings.Contains(out, `"nkp"`) {
		t.Errorf("a second install: %v\n%s", err, out)
	}
	for range 2 { // it starts, stops, and starts again
		h.serve()
	}
	h.write("one", simple("one", "10.99.3.1", "100.244.1.2"))
	h.settledWithoutAgent()
	if d := h.HNS.Dump(); !strings.Contains(d, `["100.244.1.1"]`) {
		t.Errorf("a stopped service leaves HNS as it was, and changes nothing more; it has\n%s", d)
	}
	if out, err := h.nkp("windows-service", "uninstall"); err != nil {
		t.Errorf("uninstall: %v\n%s", err, out)
	}
	if out, err := h.Run("net", "start", "nkp"); err == nil {
		t.Errorf("the service is still there\n%s", out)
	}
}

// serve starts the service, sees it serve and answer, and stops it.
func (h *host) serve() {
	h.t.Helper()
	if out, err := h.Run("net", "start", "nkp"); err != nil {
		h.t.Fatalf("start: %v\n%s", err, out)
	}
	h.greet()
	h.has(1)
	h.settled()
	if out, err := h.nkp("status", "--socket", h.pipe); err != nil || !strings.Contains(out, "1 load balancers, 2 endpoints") {
		h.t.Errorf("status of the service: %v\n%s", err, out)
	}
	if out, err := h.Run("net", "stop", "nkp"); err != nil {
		h.t.Errorf("stop: %v\n%s", err, out)
	}
	h.until("the service's pipe is gone", func() bool { return h.status().Syncs == 0 })
}

// A process that the Service Control Manager has not started says so.
func TestServiceByHand(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	out, err := h.nkp("run", append(h.args()[1:], "--windows-service")...)
	if exitStatus(err) != 1 || !strings.Contains(out, "not started by the Service Control Manager") {
		t.Errorf("%v\n%s", err, out)
	}
}
