//go:build linux

package semantics

import (
	"os"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// kubeProxyBinary is kube-proxy: NKP_KUBE_PROXY, or built once, which takes minutes the first time.
var kubeProxyBinary = sync.OnceValues(func() (string, error) {
	return testbed.Build("NKP_KUBE_PROXY", "../k8s", "k8s.io/kubernetes/cmd/kube-proxy",
		"-ldflags", testbed.ReportsKube(testbed.KubeVersion))
})
