// Package xtables speaks to the kernel's iptables tables of one address family: it chooses the back end (nf_tables or
// legacy), reads chains back, and commits transactions by iptables-restore. It knows no Service.
//
// The programs are run with argument vectors, never through a shell, in the calling process's network namespace. Linux
// only. Start reading at [Choose] and [Tables].
package xtables
