// Package metrics counts what nkp does and serves it to Prometheus, on the port where kube-proxy serves its
// own.
//
// [Metrics] holds all numbers. What means the same as in kube-proxy has kube-proxy's name, labels and
// buckets, so that its dashboards and alerts keep working (kubeproxy.go); the rest is called nkp_… (nkp.go).
// Every metric is a [Definition]; docs/metrics.md is generated from them. [Server] answers on
// --metrics-bind-address, path by path as kube-proxy does.
//
// The package is passive: data planes and agent report events to it, and a function of the agent's collects
// states at a scrape. Nothing here waits for a switch or a kernel: a scrape works when those do not. Start
// reading at [Metrics].
package metrics
