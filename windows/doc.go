// Package windows is the data plane of Windows nodes: it programs the load balancers and endpoints that the
// model of package k8s asks for into the Host Networking Service (HNS).
//
// It reconciles: it reads the objects of HNS, compares them with the plan (package plan), and writes only the
// difference (package reconcile). A restart therefore changes nothing, and objects that another program
// deletes are recreated. README.md says which objects of HNS it owns and how it differs from kube-proxy's
// kernelspace mode.
//
// It decides nothing about Services: which endpoints are in force is the model's business. It does not serve
// health checks, metrics or events: Status has what they need.
//
// Start reading at Plane.
package windows
