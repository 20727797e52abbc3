// Package restore accesses the kernel's iptables tables of one address family: it chooses the back end
// (nf_tables or legacy), reads back chains, and commits transactions with iptables-restore. Chains of
// nf_tables that iptables cannot list are read by netlink; nothing is written that way. It has no notion of
// Services.
//
// The programs are run with argument vectors, never through a shell, in the calling process's network
// namespace. Linux only. Start reading at [Choose] and [Tables].
package restore
