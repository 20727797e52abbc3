// Package remote finds nkp's pods in a cluster and connects to their agents through the API server, as
// `kubectl exec` does.
//
// In each pod it runs `nkp connect`, which passes bytes between the exec's stream and the agent's socket.
// Start reading at [New].
package remote
