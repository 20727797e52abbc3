// Package apiserver talks to the Kubernetes API server: a Source follows Services, EndpointSlices, this Node and
// ServiceCIDRs, and a Recorder writes Events.
//
// Nothing else in nkp uses client-go's clients. Every answer is bounded (limit.go), lists are decoded item by item as they come
// in (decode.go), objects are stripped of what the model does not read (trim.go), and a server that is away is asked again
// for ever (health.go). Start reading at Source.Run.
//
// Objects that were passed to a Sink share strings and pointers with each other: a caller must not change them.
package apiserver
