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
	h := newInstaller(t)
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.install(0, nil)
	h.greet()
	h.has(1)
	h.settled()
	for range 2 { // it stops, and starts again
		h.stop()
		h.serve()
	}
	h.stop()
	h.write("one", simple("one", "10.99.3.1", "100.244.1.2"))
	h.expect(0, "windows-service", []string{"uninstall"})
	if out, err := h.Run("net", "start", "nkp"); err == nil {
		t.Errorf("the service is still there\n%s", out)
	}
	if d := h.HNS.Dump(); !strings.Contains(d, `["100.244.1.1"]`) {
		t.Errorf("a stopped service leaves HNS as it was, and changes nothing more; it has\n%s", d)
	}
}

// serve starts the service, and sees it serve and answer.
func (h *host) serve() {
	h.t.Helper()
	if out, err := h.Run("net", "start", "nkp"); err != nil {
		h.t.Fatalf("start: %v\n%s", err, out)
	}
	h.greet()
	h.has(1)
	h.settled()
	if out, err := h.nkp("status", "--socket", h.pipe); err != nil || !strings.Contains(out, "1 load balancer, 2 endpoints") {
		h.t.Errorf("status of the service: %v\n%s", err, out)
	}
}

// stop stops the service.
func (h *host) stop() {
	h.t.Helper()
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
