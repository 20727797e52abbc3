// Package fallback tests the iptables data plane beside kube-proxy 1.37.2, which is built from its Go module: that either
// takes over from the other without a failed connection, and which is faster at 10,000 Services. Both follow the same API
// server, in a bed of package testbed.
//
// NKP_KUBE_PROXY names a kube-proxy that is built already. kube-proxy's nftables mode needs the program nft.
package fallback
