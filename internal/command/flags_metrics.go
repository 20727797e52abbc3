package command

import (
	"net/netip"

	"github.com/spf13/pflag"
)

// metricsPort is kube-proxy's port of /metrics.
const metricsPort = 10249

// metricsFlags defines the flags for the metrics and their server, with kube-proxy's names and defaults where it has them.
func (s *settings) metricsFlags(f *pflag.FlagSet) {
	defer inGroup(f, groupServers)()
	m := &s.Metrics
	f.StringVar(&m.Addr, "metrics-bind-address", "127.0.0.1:10249", "address and port of /metrics, /proxyMode and /configz (a port left out: 10249); empty: none, port 0: any that is free")
	f.BoolVar(&m.Authorization, "metrics-authorization", false, "serve --metrics-bind-address over HTTPS, and only to clients whose bearer token the API server accepts (TokenReview) and allows the path (SubjectAccessReview); needs the ClusterRole system:auth-delegator")
	f.StringVar(&m.CertFile, "metrics-tls-cert-file", "", "PEM file of the certificate with which --metrics-bind-address is served over HTTPS, read again every minute (default: self-signed with --metrics-authorization, else plain HTTP)")
	f.StringVar(&m.KeyFile, "metrics-tls-private-key-file", "", "PEM file of its private key")
	f.BoolVar(&m.Profiling, "profiling", false, "serve profiles at /debug/pprof, and change the log level at /debug/flags/v, on --metrics-bind-address")
	f.BoolVar(&m.Services, "service-metrics", false, "serve connections, packets and bytes of every Service port as metrics")
	f.IntVar(&m.ServiceLimit, "service-metrics-limit", 1000, "Service ports that --service-metrics serves by name; the others are summed")
}

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
