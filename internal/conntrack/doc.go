// Package conntrack lists and deletes the connections that the kernel tracks in this process' network
// namespace, over netlink (include/uapi/linux/netfilter/nfnetlink_conntrack.h). It needs CAP_NET_ADMIN and
// Linux.
//
// Connections are read one after the other, so that memory does not grow with their number. The caller
// decides which of them belong to a Service. Start reading at Forget.
package conntrack

import (
	"errors"

	"github.com/nkp-proxy/nkp/k8s"
)

// ErrInterrupted is the error of a list that may lack entries, because the table changed meanwhile
// (NLM_F_DUMP_INTR, include/uapi/linux/netlink.h). Retrying helps.
var ErrInterrupted = errors.New("the table changed while it was listed")

// Ping is the protocol of connections of ICMP and ICMPv6, which have no ports.
const Ping k8s.Protocol = "ICMP"
