//go:build linux

// Package semantics holds kube-proxy's behaviour as one list of tests by packet, the same for every data plane: the
// real program on a private network (test/testbed), Services in manifest files, connections from pods, the node
// and outside. Each TestRowNN is a row of docs/semantics.md; each of its subtests is one clause, for IPv4 and IPv6.
// Rows 1 to 6, which endpoints a Service port has, are those of k8s/testdata/semantics: no data plane sees how the
// model came to its lists. Row 39, ICMP errors, is TestICMPErrors of test/packets, because it must know routers and
// MTUs of the bed.
// Start reading at TestRow09ClusterIP; what a table's columns mean is in expect_test.go.
//
// NKP_SEMANTICS_PLANES is a comma-separated list of the data planes to test; without it those of defaultPlanes. The
// plane kube-proxy is kube-proxy itself, in iptables mode, to check the list against. NKP_BINARY and NKP_KUBE_PROXY name
// programs to test instead of building them.
//
// What it is not: it does not look at rules or flows, and only planes_test.go depends on planes.
package semantics
