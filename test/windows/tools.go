//go:build tools

package windows

import _ "k8s.io/kubernetes/cmd/kube-proxy" // built as kube-proxy.exe by the tests
