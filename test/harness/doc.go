//go:build linux

// Package harness is shared by the suites that run nkp on a test bed. It starts a program that ends with its test, runs commands to
// their end, writes the manifests that nkp reads, and waits for conditions. Each suite adds its own cluster. Package testbed
// provides the network. Nothing here depends on a data plane.
package harness
