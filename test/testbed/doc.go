//go:build linux

// Package testbed builds a small Kubernetes-like network around a private Open
// vSwitch: a node with its bridge, pods, a router, a second node with pods of
// its own, and a client outside the cluster. Everything lives in anonymous
// network namespaces, so several beds run side by side and none touches the
// machine's own network, namespaces or switch.
//
//	 local pods: pod subnet                          remote pods
//	  10.0.0.N/24, fd00:a::N                          10.0.1.N/32, fd00:b::N
//	  MAC 02:00:00:00:00:N                                |     |
//	  ofport N (11, 12, …)                                |     |
//	      |      |                                   +----+-----+-----+
//	+-----+------+-----------------+                 |     Remote     |
//	| Node   br-int (netdev)       |                 | 172.16.1.3/24  |
//	|  LOCAL: 172.16.0.2/24        |                 | fd00:ac:1::3   |
//	|         fd00:ac::2/64        |                 +-------+--------+
//	|         02:00:00:00:00:02    |                         |
//	+-------------+----------------+                         |
//	              | uplink, ofport 1                         |
//	              |                                          |
//	+-------------+------------------------------------------+--+
//	| Router  172.16.0.1, fd00:ac::1 (node subnet)              |
//	|         10.0.0.1,   fd00:a::1  (the pods' gateway)        |
//	|         02:00:00:00:00:01, both on the uplink             |
//	+-------------+---------------------------------------------+
//	              |
//	     +--------+---------+
//	     |     External     |
//	     | 192.168.0.2/24   |
//	     | fd00:c0::2/64    |
//	     +------------------+
//
// N is written with the same decimal digits everywhere: pod 11 is 10.0.0.11,
// fd00:a::11 and 02:00:00:00:00:11.
//
// The router sends service addresses (see [ServiceRanges]) to the node, so an
// external client reaches them by way of the node's address. With
// [Options.NodeOutside] the node's address sits on a NIC of its own beside the
// bridge, as on NSX nodes, and LOCAL has none.
//
// With [Options.Plane] set to [Linux] the node has no Open vSwitch. Everything
// else is the same, addresses and pods' gateway included, but the node's kernel
// routes to each pod's link, NodeNIC carries everything that leaves the node, and
// the router sends the pods' subnet to the node.
//
// [New] builds a bed, [Start] builds one for a test; [Bed.AddPods] adds pods.
// Servers and clients run inside this process: their sockets are made by a
// thread that is in the right namespace and are then ordinary Go sockets.
// Programs under test run in processes of their own: [NKP] and [Build] give
// their paths, [Host.Launch] starts one.
// Without flows a bridge with fail mode secure drops everything: install flows,
// or set [Options.Standalone].
//
// A client waits for wait.Limit, which is a hang. Who expects that a packet is dropped bounds the wait by a control: see
// [AskOptions] and [Held.CheckUntil].
//
// The environment variable NKP_OVS takes another Open vSwitch than the system's: the prefix that it is installed below,
// with its programs in PREFIX/bin and PREFIX/sbin and the schema in PREFIX/share/openvswitch. [Bed.Since] tells tests of
// what its version has. NKP_TESTBED_DATAPATH takes another datapath_type.
//
// What it is not: it does not simulate kubelet or an API server, and it has
// nothing about Services.
package testbed
