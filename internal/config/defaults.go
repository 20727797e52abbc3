package config

import (
	"cmp"
	"net"
	"runtime"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// Default ports of kube-proxy, and nkp, for health checks and metrics.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// Default fills in what a KubeProxyConfiguration leaves out, as kube-proxy 1.37 does for v1alpha1.
func Default(c *KubeProxy) {
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if netutils.ParseIPSloppy(c.BindAddress).To4() == nil {
		healthz, metrics = "::", "::1"
	}
	c.HealthzBindAddress = cmp.Or(c.HealthzBindAddress, healthz)
	c.MetricsBindAddress = cmp.Or(c.MetricsBindAddress, metrics)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, HealthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, MetricsPort)

	c.ClientConnection.ContentType = cmp.Or(c.ClientConnection.ContentType,
		"application/vnd.kubernetes.protobuf")
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, 5)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}

	orNew(&c.IPTables.MasqueradeBit, 14)
	orNew(&c.IPTables.LocalhostNodePorts, true)
	c.IPTables.SyncPeriod.Duration = cmp.Or(c.IPTables.SyncPeriod.Duration, 30*time.Second)
	c.IPTables.MinSyncPeriod.Duration = cmp.Or(c.IPTables.MinSyncPeriod.Duration, time.Second)
	c.IPVS.SyncPeriod.Duration = cmp.Or(c.IPVS.SyncPeriod.Duration, 30*time.Second)
	orNew(&c.NFTables.MasqueradeBit, 14)
	c.NFTables.SyncPeriod.Duration = cmp.Or(c.NFTables.SyncPeriod.Duration, 30*time.Second)
	c.NFTables.MinSyncPeriod.Duration = cmp.Or(c.NFTables.MinSyncPeriod.Duration, time.Second)

	orNew(&c.OOMScoreAdj, -999)
	orNew(&c.Conntrack.MaxPerCore, 32768)
	orNew(&c.Conntrack.Min, 131072)
	orNew(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orNew(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	c.ConfigSyncPeriod.Duration = cmp.Or(c.ConfigSyncPeriod.Duration, 15*time.Minute)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// defaultForNode fills in what depends on the operating system and on kube-proxy's mode, as kube-proxy does.
func defaultForNode(c *KubeProxy) {
	if runtime.GOOS == "windows" {
		c.Winkernel.RootHnsEndpointName = cmp.Or(c.Winkernel.RootHnsEndpointName, "cbr0")
		return
	}
	PrimaryNodePorts(c)
	c.DetectLocalMode = cmp.Or(c.DetectLocalMode, "ClusterCIDR")
}

// PrimaryNodePorts keeps NodePorts where kube-proxy's mode nftables has them by default: at the node's
// primary addresses.
func PrimaryNodePorts(c *KubeProxy) {
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{NodePortsPrimary}
	}
}

// Keywords of nodePortAddresses, each at most once, in any combination with ranges.
const (
	NodePortsPrimary   = "primary"   // the node's primary address of each family
	NodePortsLocalhost = "localhost" // 127.0.0.0/8 and ::1/128
	NodePortsAll       = "all"       // 0.0.0.0/0 and ::/0
)

// NewKubeProxy returns kube-proxy's configuration as it is without a file.
func NewKubeProxy() *KubeProxy {
	c := &KubeProxy{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(),
		Kind: kubeProxyKind}}
	Default(c)
	ownDefaults(c, &KubeProxy{})
	c.DetectLocalMode = cmp.Or(c.DetectLocalMode, "ClusterCIDR")
	return c
}

// ownDefaults sets nkp's defaults where they differ from kube-proxy's, for fields that a file leaves out.
// nkp's iptables transactions hold only the changes, so they need not wait for more.
func ownDefaults(c, file *KubeProxy) {
	for _, p := range []struct{ period, given *metav1.Duration }{
		{&c.IPTables.MinSyncPeriod, &file.IPTables.MinSyncPeriod},
		{&c.NFTables.MinSyncPeriod, &file.NFTables.MinSyncPeriod},
	} {
		if p.given.Duration == 0 {
			p.period.Duration = 0
		}
	}
}

// withPort adds a port to an IP address that bears none, and leaves everything else alone.
func withPort(addr string, port int) string {
	if netutils.ParseIPSloppy(addr) == nil {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(port))
}

// WithPort adds a port to an IP address that bears none; 0 stands for no address at all, as in kube-proxy's
// old flags.
func WithPort(addr string, port int) string {
	if port == 0 {
		return ""
	}
	return withPort(addr, port)
}

func orNew[T any](v **T, usual T) {
	if *v == nil {
		*v = &usual
	}
}
