//go:build linux

package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nkp-proxy/nkp/test/windows/winebed"
)

// What all tests use: a Wine prefix and the data plane as a Windows program.
var (
	prefix   *winebed.Prefix
	winplane string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if prefix, err = winebed.NewPrefix(); err != nil {
		return 1, err
	}
	defer prefix.Close()
	winplane = filepath.Join(prefix.Dir(), "winplane.exe")
	if err := winebed.BuildWindows("./cmd/winplane", winplane); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
