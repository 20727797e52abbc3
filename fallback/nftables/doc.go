// Package nftables serves Services with nftables, in a table of nkp's own.
//
// A worker compiles the changes of one family (package rules) and commits them by netlink (package netlink).
// At start it reads back the table and sends only the differences; the kernel tells it of changes by others,
// which it repairs.
//
// Start reading at [New] and worker; README.md in this folder documents the table.
package nftables
