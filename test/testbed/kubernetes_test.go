//go:build linux

package testbed

import (
	"os"
	"strings"
	"testing"
)

// Programs of Kubernetes report the version that they are built from.
func TestKubeVersion(t *testing.T) {
	modules, err := os.ReadFile("../k8s/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(modules), "\n\tk8s.io/kubernetes "+KubeVersion+"\n") {
		t.Errorf("test/k8s/go.mod does not require k8s.io/kubernetes %s", KubeVersion)
	}
}
