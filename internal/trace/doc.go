// Package trace explains what happens to one packet, in Kubernetes' words: where it comes from, which Service and
// frontend it meets, which policy applies, which endpoints are candidates and why the others are not, whether its source
// is masqueraded, and where it ends.
//
// It knows the model only (package k8s), and decides nothing by itself: frontends, endpoints in force and what happens
// without any come from there. What is really installed is compared with it elsewhere (internal/live).
//
// Start reading at Explain; its answer is in result.go.
package trace
