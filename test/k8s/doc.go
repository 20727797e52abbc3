// Package k8s is the Go module of all tests that build programs and packages of k8s.io/kubernetes, so that nkp's own module does without
// them:
//
//   - e2e: nkp against a real API server, with a real switch on each node.
//   - differential: nkp's decisions against those of kube-proxy's code, on random clusters.
//   - windows: nkp.exe and kube-proxy.exe in Wine, against a fake HNS.
//
// Other tests build kube-proxy here, as the module's tool. All modules of Kubernetes have the version of k8s.io/kubernetes; to take another
// one, change the require and replace lines of go.mod together.
package k8s
