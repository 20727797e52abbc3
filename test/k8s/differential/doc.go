// Package differential compares nkp with kube-proxy's own Go code on random clusters.
//
// One side is the k8s package of nkp, the other is k8s.io/kubernetes/pkg/proxy (its change trackers and
// CategorizeEndpoints) behind the selectors and defaults that a kube-proxy has. Both see the same objects come, change
// and go, and from time to time both are asked for everything they know, as Facts. A fact that differs is a failure,
// unless one of the Reasons of reasons.go explains it exactly. A failing case is shrunk before it is printed.
//
//	go test .                        10,000 cases from the default seed; at night 2,000 more from a random one
//	go test . -update                the same; write what test/oracle compares nkp with
//	go test . -seed 7 -cases 1       one case again
//	go test . -v                     how often each accepted difference was met
//
// It is a module of its own, so that k8s.io/kubernetes never becomes a dependency of nkp. It does not look at flows: that
// the model is programmed as it says is for the packet tests.
//
// Package test/oracle makes the cases. Start reading at replay.
package differential
