// Package cni is the Go module of CNI plugins that others wrote, which tests build unchanged as the module's tools: ovs-cni, and
// host-local, which allocates addresses for it.
package cni
