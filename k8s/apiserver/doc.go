// Package apiserver talks to the Kubernetes API server: a Source follows Services, EndpointSlices, this Node
// and ServiceCIDRs, and a Recorder writes Events.
//
// Nothing else in nkp uses client-go's clients. Every answer is bounded (transport.go), lists are decoded
// item by item as they arrive (decode.go), objects are stripped of fields that the model does not read
// (trim.go), and calls to an unreachable server are retried indefinitely (health.go). Start reading at
// Source.Run.
//
// Objects that were passed to a Sink share strings and pointers with each other: a caller must not change
// them.
package apiserver
