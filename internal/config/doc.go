// Package config reads, checks, writes and watches nkp's configuration file (--config).
//
// The file holds a KubeProxyConfiguration of kube-proxy's (kubeproxy.config.k8s.io/v1alpha1; a kubeadm
// ConfigMap's config.conf works as it is), an NkpConfiguration (nkp-proxy.github.io/v1alpha1), or both as two
// YAML documents. Every field stands for a flag of the command line, and its text is the flag's: package
// internal/command applies the fields as flags. The fields are documented in one place, the table of
// fields.go and the comments of nkp.go, which docs/configuration.md is made from.
//
// The package depends on no data plane and sets nothing. Start reading at [Load].
package config
