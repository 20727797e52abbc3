// Package ports finds processes on this node that listen on a port that a Service claims.
//
// A NodePort, an external IP or a load balancer's address that is one of the node's own hides the port of any
// process that listens there: the process keeps its socket, clients reach the Service, and nothing reports
// why. kube-proxy does not check this. This package does, and names the process; the agent reports it (an
// Event, a line in status).
//
// It cannot see ports of pods with a hostPort, which are rules of the container network and not sockets, nor
// sockets in other network namespaces. It ignores listeners on loopback addresses, which clients elsewhere
// cannot reach, and cluster IPs, which node-local caches bind to on purpose.
//
// Start reading at [Watcher]; [Scan] and [Conflicts] are its two halves, the first of which asks the kernel.
package ports
