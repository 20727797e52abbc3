// Package k8s holds what Services mean on one node.
//
// It decides, once for all data planes, which endpoints are in force for which frontend, under which policy, and what
// becomes of traffic when there are none. The rules are kube-proxy's (Kubernetes 1.36). A Tracker takes changes of API
// objects and computes a Model of them: start reading there; the results are in model.go.
//
// The package is pure. It reads no file and no clock, and links neither a client of the API server nor a decoder. Objects
// come from a Source: k8s/apiserver follows an API server, k8s/manifest files. Both report to a Sink, and neither imports the
// other. Flows, iptables rules and HNS objects are made elsewhere, from the Model.
//
// Others must not write to what Flush returns, and must read Model.Ports and Model.HealthChecks before the next Flush.
package k8s
