// Package deploy tests what is in the repository's folder deploy: the systemd unit, packages, images and the Windows
// script, each as its user would use it (`make test-deploy`). The Kubernetes manifests are tested with a real API server in
// test/k8s/e2e.
//
// It is a Go module of its own: parsers of units and images, and seccomp, are needed by nothing else.
package deploy
