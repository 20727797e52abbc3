package command

import "net/netip"

// metricsPort is kube-proxy's port of /metrics.
const metricsPort = 10249

// resolveMetrics checks the flags of metricsFlags.
func (s *settings) resolveMetrics() error {
	m := &s.Metrics
	if ip, err := netip.ParseAddr(m.Addr); err == nil {
		m.Addr = netip.AddrPortFrom(ip, metricsPort).String()
	}
	if m.Addr != "" {
		if _, err := netip.ParseAddrPort(m.Addr); err != nil {
			return usageError("--metrics-bind-address %q is not ADDRESS:PORT such as 127.0.0.1:10249", m.Addr)
		}
	}
	if (m.CertFile == "") != (m.KeyFile == "") {
		return usageError("--metrics-tls-cert-file and --metrics-tls-private-key-file go together")
	}
	if m.ServiceLimit < 0 {
		return usageError("--service-metrics-limit %d must not be below 0", m.ServiceLimit)
	}
	return nil
}
