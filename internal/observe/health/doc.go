// Package health answers health checks of load balancers and kubelets, for Services and for nkp itself, as
// kube-proxy does.
//
// [Services] are the health check node ports: one for each Service of type LoadBalancer with
// externalTrafficPolicy Local, where a load balancer learns whether this node has endpoints of it. [Proxy] is
// /healthz and /livez on port 10256: whether changes are programmed in time, and whether the node should get
// new traffic. Paths, status codes, headers and bodies are kube-proxy's (Kubernetes 1.37,
// pkg/proxy/healthcheck), byte for byte.
//
// Clients are not trusted: requests are bounded in size and time, connections in number (internal/httpguard).
// This package decides nothing about endpoints; what it reports comes from the model (package k8s) and from
// the agent.
package health
