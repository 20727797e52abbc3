// Package plan computes the HNS objects that a node should have, endpoints and load balancers, from the model
// of package k8s and facts about the host. It is pure: no clock, no I/O, and the same input gives the same
// output.
//
// Package k8s decides which endpoints are in force for which frontend; this package decides how to express
// that in HNS: flags, source VIP, remote endpoints, and what HNS cannot express at all (Unsupported).
//
// Start reading at New; its result is Wanted, which prints itself (nkp plan -o hcn).
package plan
