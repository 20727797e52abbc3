// Package k8s knows where Services come from and what they mean on one node.
//
// It decides, once for all data planes, which endpoints are in force for which frontend, under which policy,
// and what becomes of traffic when there are none: the rules are kube-proxy's (Kubernetes 1.36). A Source
// reports API objects (ManifestSource those in YAML and JSON files, APISource those at an API server), a Tracker
// turns them into a Model and tells what changed.
//
// It knows no data plane: flows, iptables rules and HNS objects are made elsewhere, from the Model. It does not
// talk to the switch either; APISource alone uses the network.
//
// Start reading at Tracker; what comes out of it is in model.go.
package k8s
