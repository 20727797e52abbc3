// Package trace explains what happens to one packet, in Kubernetes' words: where it comes from, which Service
// and frontend it matches, which policy applies, which endpoints are candidates and why the others are not,
// whether its source is masqueraded, and where it ends.
//
// It uses the model only (package k8s), and decides nothing by itself: frontends, endpoints in force and what
// happens without any come from there. Package internal/live compares the answer with the installed rules.
//
// Start reading at Explain; its result type is in result.go.
package trace
