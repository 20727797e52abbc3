// Command bench measures nkp beside its peers, in one run on one machine: kube-proxy's nftables and iptables modes on the
// same API server, ovs-ofctl on the same switch, and pods that reach each other without any Service.
//
//	make bench         everything, under 30 minutes on two cores; writes docs/benchmarks.md, its plots, docs/scale.md, and the
//	                   numbers of README.md. BENCHFLAGS=-huge: 50,000 Services × 5 endpoints and 5,000 × 50, too
//	make bench-quick   up to 1,000 Services, 5 minutes; prints only
//	make trend         ratios beside their references, in turns, with intervals, against those in trend.json; 8 minutes
//	make bench-kernel  VIP against direct on the kernel's datapath, in the emulated machine of test/kernel; prints only
//
// Absolute times say little on a shared machine. What is judged are ratios between things measured in turns within the
// run, and exponents: how a cost grows with the number of Services. A target that is missed ends the run with status 1.
//
// By hand: -alone measures without an API server, -profile reports by perf where the time goes, of nkp and of its peers
// (profile.go, perf.go); -help has the flags.
//
// Start reading at [run] (main.go): it walks through the numbers of Services. control.go measures what a proxy costs and
// how fast it follows, repair.go what its tables cost the kernel and how soon they are back when they are lost, data.go
// what its Services cost a packet, fleet.go what many agents cost the API server, events.go what empty tables, a frozen
// switch and a replacement of nkp cost beside the least that they can, and targets.go holds what must hold. Package rig
// has the network, the API server and the proxies, package traffic the clients, package ofctrltest (of the product) a
// switch in memory, package report tables, plots and the fit of exponents.
//
// It needs root, Open vSwitch, iptables and nft. Everything runs in network namespaces that it makes and that go
// with it; it is a Go module of its own because nothing else needs a plotting library.
package main
