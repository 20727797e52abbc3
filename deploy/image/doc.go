// Image builds nkp's container images as OCI archives, without a container engine and without a registry:
//
//	image -version v0.1.0 -dist DIR [amd64|arm64]...
//
// DIR holds the binaries of a release (nkp-linux-ARCH, nkp-windows-amd64.exe), and gets one archive for each image:
//
//	nkp            the static binary and nothing else, for nodes with Open vSwitch
//	nkp-iptables   the binary with iptables, from Debian packages that packages.lock pins by version and SHA-256
//	nkp-windows    nkp.exe for HostProcess containers, if amd64 is built
//
// An archive is an OCI image layout in a tar, with an image index over the architectures: ctr images import, skopeo and crane
// read it. The same input yields the same bytes, because times are SOURCE_DATE_EPOCH and order is by name.
package main
