package e2e

import (
	"os"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const kubeVersion = "v1.37.2" // of k8s.io/kubernetes in go.mod

// nkpBinary and kubeserverBinary are the paths of the programs, once binaries has built them.
var nkpBinary, kubeserverBinary string

// binaries builds the programs under test, nkp and kubeserver, once.
var binaries = sync.OnceValue(func() (err error) {
	// The product has its own choice of modules.
	if nkpBinary, err = testbed.Build("NKP_BINARY", "../../..", "github.com/nkp-proxy/nkp"); err != nil {
		return err
	}
	kubeserverBinary, err = testbed.Build("NKP_KUBESERVER", ".", "./kubeserver",
		"-ldflags", "-X k8s.io/component-base/version.gitVersion="+kubeVersion)
	return err
})

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}
