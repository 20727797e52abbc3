//go:build linux

package semantics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// buildDir is where programs under test are built; it goes with the tests.
var buildDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nkp-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// nkpBinary is the nkp under test: NKP_BINARY, or built once.
var nkpBinary = sync.OnceValues(func() (string, error) {
	return binary("NKP_BINARY", ".", "nkp", "github.com/nkp-proxy/nkp")
})

// kubeProxyBinary is kube-proxy: NKP_KUBE_PROXY, or built once, which takes minutes the first time.
var kubeProxyBinary = sync.OnceValues(func() (string, error) {
	return binary("NKP_KUBE_PROXY", "kubeproxy", "kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy",
		"-ldflags", "-X k8s.io/component-base/version.gitVersion=v1.36.3")
})

// binary gives the program that an environment variable names, or builds a package from the module in dir.
func binary(env, dir, name, pkg string, flags ...string) (string, error) {
	if bin := os.Getenv(env); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(buildDir, name)
	args := append(append([]string{"build", "-C", dir, "-o", bin}, flags...), pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %v: %w: %s", args, err, out)
	}
	return bin, nil
}
