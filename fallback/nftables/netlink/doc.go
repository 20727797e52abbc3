// Package netlink installs and reads back the tables of package rules, by messages of the kernel's nf_tables.
// It runs no program.
//
//   - [Batch] collects changes, which [Conn.Commit] makes in force together or not at all. If the kernel
//     refuses some, the [RefusedError] has the tags that they were added with.
//   - [Conn.ReadChains] and [Conn.ReadElements] return what is installed.
//   - [Conn.Follow] evaluates the rules of all owners for one packet.
//   - [Watch] reports when another program changes nkp's tables.
//
// The rules' expressions are those of github.com/google/nftables/expr. Messages and sockets are this
// package's own, because that library's connection loses which message of a batch was refused, reports no
// interrupted dump, and has no counters of elements.
//
// Message formats: include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h of the kernel.
package netlink
