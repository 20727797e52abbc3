// Package apifake is as much of a Kubernetes API server as service proxies ask for: lists and watches of Services,
// EndpointSlices, Nodes and ServiceCIDRs, from memory, with selectors, in protobuf or JSON. Events are swallowed.
package apifake
