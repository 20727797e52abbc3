//go:build linux

package windows

import (
	"os"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"

	"github.com/nkp-proxy/nkp/test/windows/winebed"
)

// The life of a Windows service: installed with recovery actions, started and stopped by the Service Control Manager, removed.
func TestService(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.Start(winplane, "sleep") // Wine ends its services when no other program runs, and starts those that are automatic with the next
	const name = "nkp-test"
	args := h.args("run")
	args = append(args, "-windows-service", "-service-name", name, "-log", winebed.Windows(h.Path("service.log")),
		"-setenv", "NKP_FAKE_HNS="+h.Addr())
	out, err := h.Run(winplane, append([]string{"install", "-service-name", name, "--"}, args...)...)
	if err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	if out, err := h.Run(winplane, "install", "-service-name", name); err == nil || !strings.Contains(out, `"`+name+`"`) {
		t.Errorf("a second install: %v\n%s", err, out)
	}
	if out, err := h.Run("net", "start", name); err != nil {
		log, _ := os.ReadFile(h.Path("service.log"))
		t.Fatalf("start: %v\n%s\n%s", err, out, log)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(h.Path("service.log"))
			t.Logf("the service logged\n%s", log)
		}
	})
	h.service = true
	h.has(1)
	h.settled()
	if out, err := h.Run("net", "stop", name); err != nil {
		t.Errorf("stop: %v\n%s", err, out)
	}
	h.write("one", simple("one", "10.99.3.1", "100.244.1.2"))
	h.settledWithoutAgent()
	if d := h.HNS.Dump(); !strings.Contains(d, `["100.244.1.1"]`) {
		t.Errorf("a stopped service leaves HNS as it was, and changes nothing more; it has\n%s", d)
	}
	if out, err := h.Run(winplane, "uninstall", "-service-name", name); err != nil {
		t.Errorf("uninstall: %v\n%s", err, out)
	}
	if out, err := h.Run("net", "start", name); err == nil {
		t.Errorf("the service is still there\n%s", out)
	}
}
