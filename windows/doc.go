// Package windows is the data plane of Windows nodes: it makes the Host Networking Service (HNS) have the load balancers and
// endpoints that the model of package k8s asks for.
//
// It reconciles: what HNS has is read, compared with what should be (package plan), and only the difference is written
// (package reconcile). A restart therefore changes nothing, and what is deleted behind its back comes back. README.md says
// which objects of HNS it owns and how it differs from kube-proxy's kernelspace mode.
//
// It decides nothing about Services: which endpoints are in force is the model's business. It does not serve health checks,
// metrics or events: Status has what they need.
//
// Start reading at Plane.
package windows
