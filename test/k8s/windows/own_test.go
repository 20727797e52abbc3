//go:build linux

package windows

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// The data plane's own tests pass as Windows programs, too.
func TestOwnTests(t *testing.T) {
	for pkg, flags := range map[string][]string{"windows": nil, "windows/hns": nil, "windows/plan": nil, "windows/reconcile": nil, "windows/selftest": nil, "windows/service": nil, "windows/access": nil,
		"internal/agent": {"-test.run=Pipe"}} {
		t.Run(strings.ReplaceAll(pkg, "/", "_"), func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), "own.test.exe")
			if err := winebed.BuildWindowsTest("./"+pkg, exe); err != nil {
				t.Fatal(err)
			}
			b := winebed.New(t, prefix, hns.Version{Major: 15, Minor: 5})
			out, err := b.RunIn(filepath.Join("..", "..", "..", pkg), exe, append(flags, "-test.v")...)
			if err != nil || !strings.Contains(out, "--- PASS") || strings.Contains(out, "--- SKIP") {
				t.Errorf("%s: %v\n%s", pkg, err, out)
			}
		})
	}
}
