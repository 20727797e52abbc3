// Command conformance runs Kubernetes' own network tests, unmodified, in a cluster on this machine in which nkp is the only Service proxy,
// and in the same cluster with kube-proxy as the reference.
//
//	conformance build [PART...]               what the clusters need, from Go modules and Debian packages
//	conformance run [-smoke] PLANE...         for each plane a cluster, the tests, and the results; PLANE is ovs, iptables, nftables or kube-proxy
//	conformance rollout [-from COMMIT] PLANE  rolls nkp's DaemonSets from an old version to this one and back, under load: no connection may fail
//	conformance readme [-dist DIR] PLANE      follows "Install it" of docs/operate/install.md in a cluster without a Service proxy, then runs kubectl nkp
//	conformance report FILE                   docs/conformance.md from the last results
//
// The folder cluster holds the scripts that make the machines of a cluster; README.md describes them. expected.yaml lists the tests that
// fail for a known reason. Start reading at [run] in main.go.
package main
