// Package k8s computes what Services mean on one node.
//
// It decides, once for all data planes, which endpoints are in force, and what becomes of new connections to
// a frontend: its routes. The rules are kube-proxy's (Kubernetes 1.37). A Tracker applies changes of API
// objects and computes a Model from them: start reading there. The result types are in model.go. A Router has
// the routes to the frontends of a Model.
//
// The package is pure. It reads no file and no clock, and links neither a client of the API server nor a
// decoder. Objects come from a Source: k8s/apiserver follows an API server, k8s/manifest files. Both report
// to a Sink, and neither imports the other. Flows, iptables rules and HNS objects are made elsewhere, from
// the Model.
//
// Callers must not modify what Flush returns, and must read Model.Ports and Model.HealthChecks before the
// next Flush.
package k8s
