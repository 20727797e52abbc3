//go:build linux

package testbed

// KubeVersion is the release of Kubernetes that nkp is compared with: that of k8s.io/kubernetes in test/k8s/go.mod.
const KubeVersion = "v1.37.2"

// ReportsKube returns the flag of the Go linker that makes a program of Kubernetes report a version as its own.
func ReportsKube(version string) string {
	return "-X k8s.io/component-base/version.gitVersion=" + version
}
