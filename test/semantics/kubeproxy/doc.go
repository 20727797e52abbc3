// Package kubeproxy pins the kube-proxy that the tests of test/semantics can be checked against, in a module of its own:
// nkp does not depend on k8s.io/kubernetes.
package kubeproxy
