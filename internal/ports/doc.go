// Package ports finds out who on this node listens on a port that a Service claims.
//
// A NodePort, an external IP or a load balancer's address that is one of the node's own takes the port away from whatever
// process listens there: the process keeps its socket, clients reach the Service, and nothing tells why. kube-proxy does
// not look. This package does, and says which process it is; what becomes of that (an Event, a line in status) is the
// agent's affair.
//
// What it cannot see: ports of pods with a hostPort, which are rules of the container network and no sockets; sockets in
// other network namespaces. Listeners on loopback addresses are not in the way of clients elsewhere and are left out, and
// so are cluster IPs, which node-local caches bind to on purpose.
//
// Start reading at [Watcher]; [Scan] and [Conflicts] are its two halves, the first of which asks the kernel.
package ports
