// Package e2e runs nkp against a real kube-apiserver with etcd and the EndpointSlice controller (see kubeserver), a
// real Open vSwitch and pods as network namespaces (see internal/testbed), and checks what is served by packets.
//
//	go test -C test/e2e ./...
//
// It needs root, Open vSwitch's programs, and for the first build of kube-apiserver three minutes of two cores and
// 2 GB of memory. The control plane runs in the bed's node namespace and listens on its loopback; clients of this package
// dial it from there.
//
// It is a Go module of its own: Kubernetes' servers are needed by nothing else. All modules of Kubernetes have the
// version of k8s.io/kubernetes; to take another one, change the require and replace lines of go.mod together.
package e2e
