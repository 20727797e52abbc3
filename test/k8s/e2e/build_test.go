package e2e

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// An API server is of the Kubernetes release that a module file pins: go.mod, or with NKP_E2E_KUBERNETES=1.36 the release before,
// because nodes are upgraded after the API server or before it.
var releases = map[string]struct{ modules, version string }{
	"":     {"go.mod", testbed.KubeVersion},
	"1.36": {"kubernetes-1.36.mod", "v1.36.3"},
}

// static are the linker's flags for a program that runs in a container with nothing else, as those of the images do.
const static = "-linkmode external -extldflags -static"

// nkpBinary and kubeserverBinary are the paths of the programs, once binaries has built them.
var nkpBinary, kubeserverBinary string

// binaries builds the programs under test, nkp and kubeserver, once.
var binaries = sync.OnceValue(func() (err error) {
	// The product has its own choice of modules.
	if nkpBinary, err = testbed.Build("NKP_BINARY", "../../..", "github.com/nkp-proxy/nkp", "-ldflags", static); err != nil {
		return err
	}
	wanted := os.Getenv("NKP_E2E_KUBERNETES")
	kube, ok := releases[wanted]
	if !ok {
		return fmt.Errorf("NKP_E2E_KUBERNETES=%s: must be 1.36 or unset", wanted)
	}
	kubeserverBinary, err = testbed.Build("NKP_KUBESERVER", ".", "./kubeserver",
		"-modfile", "../"+kube.modules, "-ldflags", testbed.ReportsKube(kube.version))
	return err
})

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == containerCommand {
		fmt.Fprintln(os.Stderr, "container:", runContainer(os.Args[2]))
		os.Exit(127)
	}
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}
