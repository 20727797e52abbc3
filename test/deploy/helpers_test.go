//go:build linux

package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// distDir is a release for this machine's architecture: the one that NKP_DIST names, or one that is built once.
var distDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("NKP_DIST"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.MkdirTemp("", "nkp-dist-")
	if err != nil {
		return "", err
	}
	built = dir
	cmd := exec.Command("../../deploy/package/dist", dir, "amd64")
	cmd.Env = append(os.Environ(), "REGISTRY=registry.test/owner")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("deploy/package/dist: %w: %s", err, out)
	}
	return dir, nil
})

// built is what distDir has built, "" if nothing.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// distFile returns the one file of the release that a pattern names.
func distFile(t *testing.T, pattern string) string {
	t.Helper()
	dir, err := distDir()
	must(t, err)
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("%d files %s in %s, want one", len(files), pattern, dir)
	}
	return files[0]
}

// confineProgram builds the program confine.
func confineProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "confine")
	mustRun(t, "go", "build", "-o", bin, "./confine")
	return bin
}

func debPackage(t *testing.T) string {
	t.Helper()
	return distFile(t, "nkp_*_amd64.deb")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustRun runs a program and gives what it printed, on standard error too.
func mustRun(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

func requireProgram(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			t.Fatalf("%v: run make deps", err)
		}
	}
}
