// Package e2e runs nkp against a real kube-apiserver with etcd and the EndpointSlice controller (see kubeserver), on
// nodes with a real Open vSwitch each and pods as network namespaces (see test/testbed), and checks what is served by
// packets. nkp has no other rights at the API server than those of deploy/kubernetes/rbac/rbac.yaml.
//
//	go test -C test/k8s ./e2e/...
//
// With NKP_E2E_KUBERNETES=1.36 kube-apiserver and controller are of the release before (make e2e-skew).
//
// It needs root, Open vSwitch's programs, and for the first build of kube-apiserver three minutes of two cores and
// 2 GB of memory. The control plane runs in the first node's namespace; clients of this package dial it from there.
// Start reading at [cluster] (cluster_test.go), then at guestbook_test.go.
package e2e
