// Package metrics counts what nkp does and serves it to Prometheus, on the port where kube-proxy serves its own.
//
// [Metrics] holds all numbers. What means the same as in kube-proxy has kube-proxy's name, labels and buckets, so that its
// dashboards and alerts keep working (kubeproxy.go); the rest is called nkp_… (nkp.go). Every metric is a [Definition];
// docs/metrics.md is generated from them. [Server] answers on --metrics-bind-address, path by path as kube-proxy does.
//
// The package decides nothing and asks nobody: data planes and agent tell it what happened, and what is a state (rather
// than an event) is collected by a function that the agent gives. Nothing here waits for a switch or a kernel: a scrape
// works when those do not. Start reading at [Metrics].
package metrics
