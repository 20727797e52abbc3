package config

import (
	"net"
	"net/netip"
	"strings"

	netutils "k8s.io/utils/net"
)

// normalizeAddresses writes addresses in their usual form: kube-proxy takes numbers with leading zeros, and
// reads them as decimal.
func normalizeAddresses(c *KubeProxy) {
	c.HostnameOverride = strings.ToLower(strings.TrimSpace(c.HostnameOverride))
	c.BindAddress = plainIP(c.BindAddress)
	for _, at := range []*string{&c.HealthzBindAddress, &c.MetricsBindAddress} {
		if host, port, err := net.SplitHostPort(*at); err == nil {
			*at = net.JoinHostPort(plainIP(host), strings.TrimPrefix(port, "+"))
		}
	}
	for i := range c.NodePortAddresses {
		c.NodePortAddresses[i] = plainCIDR(c.NodePortAddresses[i])
	}
	if c.ClusterCIDR != "" {
		list := strings.Split(c.ClusterCIDR, ",")
		for i := range list {
			list[i] = plainCIDR(list[i])
		}
		c.ClusterCIDR = strings.Join(list, ",")
	}
}

func plainIP(text string) string {
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		return ip.String()
	}
	return text
}

func plainCIDR(text string) string {
	if _, n, err := netutils.ParseCIDRSloppy(text); err == nil {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			return p.String()
		}
	}
	return text
}
