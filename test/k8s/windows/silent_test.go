//go:build linux

package windows

import (
	"os"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// A program that fails without a word is run once more, and not more often. One that prints is not.
func TestSilentFailure(t *testing.T) {
	h := newHost(t, hns.NetworkL2Bridge, newest)
	for _, c := range []struct {
		name, first string
		status      int
	}{
		{"silent", "exit 3", 0},
		{"speaks", "echo no& exit 3", 3},
	} {
		_, err := h.Run("cmd", "/c", "if exist "+c.name+" (exit 0) else (echo x>"+c.name+"& "+c.first+")") // in the host's directory
		if got := exitStatus(err); got != c.status {
			t.Errorf("%s: exit status %d, want %d", c.name, got, c.status)
		}
		if _, err := os.Stat(h.Path(c.name)); err != nil {
			t.Errorf("%s: it did not run: %v", c.name, err)
		}
	}
	if _, err := h.Run("cmd", "/c", "exit 3"); exitStatus(err) != 3 {
		t.Errorf("silent for good: %v", err)
	}
}
