// Package sysctl brings the kernel's connection tracking to the size and the timeouts that kube-proxy's
// --conntrack-* flags ask for, and says what it could not set.
//
// Nothing here is needed for Services to work, so that nothing here is an error: what cannot be written,
// because /proc/sys is read-only or this is not the host's network namespace, comes back as a warning. Other
// kernel settings (route_localnet, bridges) belong to the data planes that need them; forwarding.go only
// reads those by which the kernel does not forward.
//
// Start reading at [Apply].
package sysctl
