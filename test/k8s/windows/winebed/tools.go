//go:build linux

package winebed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// compiler builds Windows DLLs.
const compiler = "x86_64-w64-mingw32-gcc"

// winePaths are where Debian's packages wine64 and wine put the loader.
var winePaths = []string{"/usr/lib/wine/wine64", "/usr/bin/wine64", "/usr/bin/wine"}

// server returns the path of wineserver, which belongs to the loader.
func server(wine string) string { return filepath.Join(filepath.Dir(wine), "wineserver") }

// Available returns the path of Wine. The error says what to install.
func Available() (wine string, err error) {
	if _, err := exec.LookPath(compiler); err != nil {
		return "", errors.New("no cross compiler: apt-get install --no-install-recommends gcc-mingw-w64-x86-64-win32")
	}
	for _, p := range winePaths {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", errors.New("no Wine: apt-get install --no-install-recommends wine64")
}

// here returns the directory of test/k8s/windows.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// dlls are built from ../shim; each with the libraries it needs.
var dlls = map[string][]string{
	"computenetwork":   {"-lws2_32", "-lole32"},
	"vmcompute":        {"-lws2_32", "-lole32"},
	"bcryptprimitives": {"-ladvapi32"},
}

// buildDLLs builds the DLLs into a directory.
func buildDLLs(dir string) error {
	for name, libs := range dlls {
		args := append([]string{"-O2", "-Wall", "-Werror", "-s", "-shared", "-o", filepath.Join(dir, name+".dll"),
			filepath.Join(here(), "shim", name+".c")}, libs...)
		if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s.dll does not build: %w\n%s", name, err, out)
		}
	}
	return nil
}

// BuildWindows builds a Go package of the module test/k8s/windows, or one that it requires, for Windows. flags are further ones of go build.
func BuildWindows(pkg, exe string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-o", exe}, flags...)
	return goWindows(append(args, pkg)...)
}

// BuildNkp builds nkp for Windows.
func BuildNkp(exe string) error {
	return goWindowsIn(filepath.Dir(filepath.Dir(filepath.Dir(here()))), "build", "-trimpath", "-o", exe, ".")
}

// BuildWindowsTest builds the test binary of a package of nkp's own module, or of one that it requires, for Windows.
func BuildWindowsTest(pkg, exe string, flags ...string) error {
	args := append([]string{"test", "-c", "-trimpath", "-o", exe}, flags...)
	return goWindowsIn(filepath.Dir(filepath.Dir(filepath.Dir(here()))), append(args, pkg)...)
}

func goWindows(args ...string) error { return goWindowsIn(here(), args...) }

func goWindowsIn(dir string, args ...string) error {
	c := exec.Command("go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
