package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const kubeVersion = "v1.36.3" // of k8s.io/kubernetes in go.mod

// nkpBinary and kubeserverBinary are the programs, once binaries has built them. Who sets NKP_BINARY brings an nkp
// of his own.
var nkpBinary, kubeserverBinary string

// binDir is where binaries puts what it builds; "" before.
var binDir string

// binaries builds the programs under test, nkp and kubeserver, once.
var binaries = sync.OnceValue(func() (err error) {
	if binDir, err = os.MkdirTemp("", "nkp-e2e-"); err != nil {
		return err
	}
	kubeserverBinary = filepath.Join(binDir, "kubeserver")
	builds := []*exec.Cmd{exec.Command("go", "build", "-ldflags", "-X k8s.io/component-base/version.gitVersion="+kubeVersion,
		"-o", kubeserverBinary, "./kubeserver")}
	if nkpBinary = os.Getenv("NKP_BINARY"); nkpBinary == "" {
		nkpBinary = filepath.Join(binDir, "nkp")
		nkp := exec.Command("go", "build", "-o", nkpBinary, ".")
		nkp.Dir = "../../.." // with the product's own choice of modules
		builds = append(builds, nkp)
	}
	for _, cmd := range builds {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
		}
	}
	nkpBinary, err = filepath.Abs(nkpBinary)
	return err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	os.Exit(code)
}
