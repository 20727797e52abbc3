package command

import (
	"path/filepath"
	"strings"
	"testing"
)

// The page is served on loopback only, and not without an agent.
func TestUIStart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nkp.sock")
	for _, c := range []struct {
		listen, says string
		status       int
	}{
		{"0.0.0.0:8080", "is not 127.0.0.1:PORT or [::1]:PORT", exitUsage},
		{"192.0.2.1:8080", "is not 127.0.0.1:PORT or [::1]:PORT", exitUsage},
		{"[::]:8080", "is not 127.0.0.1:PORT or [::1]:PORT", exitUsage},
		{":8080", "is not 127.0.0.1:PORT or [::1]:PORT", exitUsage},
		{"localhost:8080", "is not 127.0.0.1:PORT or [::1]:PORT", exitUsage},
		{"127.0.0.1:0", "no nkp answers on " + socket, exitFailure},
	} {
		out, errOut, status := say("ui", "--socket", socket, "--listen", c.listen)
		if status != c.status || !strings.Contains(errOut, c.says) || out != "" {
			t.Errorf("--listen %s: %d, %s%s", c.listen, status, errOut, out)
		}
	}
}
