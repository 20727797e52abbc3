//go:build linux

package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// What all tests use: a Wine prefix, nkp.exe, and what leads to its pipe.
var (
	prefix            *winebed.Prefix
	nkpExe, pipeproxy string
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
	nkpExe, pipeproxy = filepath.Join(prefix.Dir(), "nkp.exe"), filepath.Join(prefix.Dir(), "pipeproxy.exe")
	if err := winebed.BuildNkp(nkpExe); err != nil {
		return 1, err
	}
	if err := winebed.BuildWindows("./cmd/pipeproxy", pipeproxy); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
