// Package plan computes the HNS objects that a node should have: from the model of package k8s and what is known of the
// host, to endpoints and load balancers as values. It is pure: no clock, no I/O, and the same input gives the same output.
//
// Which endpoints are in force for which frontend is decided in package k8s; here is decided how HNS says it: flags,
// source VIP, remote endpoints, and what HNS cannot say at all (Unsupported).
//
// Start reading at New; Wanted is what comes out, and prints itself (nkp plan -o hcn).
package plan
