// Package configuration compares how nkp reads kube-proxy's configuration, file and flags, with kube-proxy's own code.
package configuration
