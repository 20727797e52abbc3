package config

import (
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// Validate returns the fields of a completed KubeProxyConfiguration that have invalid values. Its verdict is
// kube-proxy's (test/k8s/differential compares the two), with three exceptions: unknown feature gates and
// showHiddenMetricsForVersion, which have no effect here, and port 0, which stands for any free port.
func Validate(c *KubeProxy) field.ErrorList {
	v := &validator{}
	v.bit("iptables.masqueradeBit", c.IPTables.MasqueradeBit)
	period, least := &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod
	section := "iptables"
	switch c.Mode {
	case modeIPVS:
		section, period, least = "ipvs", &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod
		v.notNegative("ipvs.tcpTimeout", c.IPVS.TCPTimeout.Duration)
		v.notNegative("ipvs.tcpFinTimeout", c.IPVS.TCPFinTimeout.Duration)
		v.notNegative("ipvs.udpTimeout", c.IPVS.UDPTimeout.Duration)
		v.cidrs("ipvs.excludeCIDRs", c.IPVS.ExcludeCIDRs)
	case modeNFTables:
		section, period, least = "nftables", &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod
		v.bit("nftables.masqueradeBit", c.NFTables.MasqueradeBit)
	}
	v.above0(section+".syncPeriod", period.Duration)
	v.notNegative(section+".minSyncPeriod", least.Duration)
	if least.Duration > period.Duration {
		v.bad(section+".syncPeriod", period.Duration.String(), "must not be below minSyncPeriod")
	}
	v.above0("configSyncPeriod", c.ConfigSyncPeriod.Duration)

	v.conntrack(&c.Conntrack)
	if a := c.OOMScoreAdj; a != nil && (*a < -1000 || *a > 1000) {
		v.bad("oomScoreAdj", *a, "must be -1000 to 1000")
	}
	if c.ClientConnection.Burst < 0 {
		v.bad("clientConnection.burst", c.ClientConnection.Burst, "must not be below 0")
	}
	v.mode(c.Mode)
	if netutils.ParseIPSloppy(c.BindAddress) == nil {
		v.bad("bindAddress", c.BindAddress, "is not an IP address")
	}
	v.hostPort("healthzBindAddress", c.HealthzBindAddress)
	v.hostPort("metricsBindAddress", c.MetricsBindAddress)
	v.nodePortAddresses(c.NodePortAddresses)
	v.detectLocal(c)
	v.logging(c)
	return v.errs
}

// validator collects what is wrong.
type validator struct{ errs field.ErrorList }

func (v *validator) bad(path string, value any, why string) {
	v.errs = append(v.errs, field.Invalid(field.NewPath(path), value, why))
}

func (v *validator) notNegative(path string, d time.Duration) {
	if d < 0 {
		v.bad(path, d.String(), "must not be below 0")
	}
}

func (v *validator) above0(path string, d time.Duration) {
	if d <= 0 {
		v.bad(path, d.String(), "must be above 0")
	}
}

func (v *validator) bit(path string, bit *int32) {
	if bit != nil && (*bit < 0 || *bit > 31) {
		v.bad(path, *bit, "must be 0 to 31")
	}
}

func (v *validator) cidrs(path string, cidrs []string) {
	for i, text := range cidrs {
		if _, _, err := netutils.ParseCIDRSloppy(text); err != nil {
			v.bad(fmt.Sprintf("%s[%d]", path, i), text, "is not a range such as 10.0.0.0/16")
		}
	}
}

func (v *validator) conntrack(c *v1alpha1.KubeProxyConntrackConfiguration) {
	if c.MaxPerCore != nil && *c.MaxPerCore < 0 {
		v.bad("conntrack.maxPerCore", *c.MaxPerCore, "must not be below 0")
	}
	if c.Min != nil && *c.Min < 0 {
		v.bad("conntrack.min", *c.Min, "must not be below 0")
	}
	v.notNegative("conntrack.tcpEstablishedTimeout", c.TCPEstablishedTimeout.Duration)
	v.notNegative("conntrack.tcpCloseWaitTimeout", c.TCPCloseWaitTimeout.Duration)
	v.notNegative("conntrack.udpTimeout", c.UDPTimeout.Duration)
	v.notNegative("conntrack.udpStreamTimeout", c.UDPStreamTimeout.Duration)
}

func (v *validator) mode(m v1alpha1.ProxyMode) {
	valid := []string{string(modeIPTables), string(modeIPVS), string(modeNFTables)}
	if runtime.GOOS == "windows" {
		valid = []string{string(modeKernelspace)}
	}
	if m != "" && !slices.Contains(valid, string(m)) {
		v.bad("mode", string(m), "must be "+strings.Join(valid, ", ")+" or blank")
	}
}

// hostPort checks where to listen; "" is nowhere.
func (v *validator) hostPort(path, text string) {
	if text == "" {
		return
	}
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.Atoi(port)
	switch {
	case err != nil:
		v.bad(path, text, "must be ADDRESS:PORT")
	case netutils.ParseIPSloppy(host) == nil:
		v.bad(path, text, fmt.Sprintf("%q is not an IP address", host))
	case portErr != nil || n < 0 || n > math.MaxUint16:
		v.bad(path, text, fmt.Sprintf("%q is not a port", port))
	}
}

func (v *validator) nodePortAddresses(list []string) {
	for i, text := range list {
		path := fmt.Sprintf("nodePortAddresses[%d]", i)
		switch text {
		case NodePortsPrimary, NodePortsLocalhost, NodePortsAll:
			if slices.Contains(list[:i], text) {
				v.bad(path, text, "is listed twice")
			}
		default:
			if _, _, err := netutils.ParseCIDRSloppy(text); err != nil {
				v.bad(path, text, "is neither a range such as 10.0.0.0/16 nor primary, localhost or all")
			}
		}
	}
}

func (v *validator) detectLocal(c *KubeProxy) {
	switch c.DetectLocalMode {
	case "", "NodeCIDR":
	case "ClusterCIDR":
		v.clusterCIDR(c.ClusterCIDR)
	case "BridgeInterface":
		if c.DetectLocal.BridgeInterface == "" {
			v.bad("detectLocal.bridgeInterface", "",
				"must name the bridge for detectLocalMode BridgeInterface")
		}
	case "InterfaceNamePrefix":
		if c.DetectLocal.InterfaceNamePrefix == "" {
			v.bad("detectLocal.interfaceNamePrefix", "",
				"must be the interface name prefix for detectLocalMode InterfaceNamePrefix")
		}
	default:
		v.bad("detectLocalMode", string(c.DetectLocalMode),
			"must be ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix or blank")
	}
}

func (v *validator) clusterCIDR(text string) {
	if text == "" {
		return
	}
	list := strings.Split(text, ",")
	both, err := netutils.IsDualStackCIDRStrings(list)
	switch {
	case err != nil:
		v.bad("clusterCIDR", text,
			"is not a range such as 10.0.0.0/16, nor one of each family with a comma and no blank between "+
				"them")
	case len(list) > 2 || len(list) == 2 && !both:
		v.bad("clusterCIDR", text, "must be one range, or one of each family")
	}
}

// logging runs the checks of kube-proxy's logging library. That library supports the format json only in
// programs that link its logger.
func (v *validator) logging(c *KubeProxy) {
	l := c.Logging
	if l.Format == logsapi.JSONLogFormat {
		if len(l.VModule) > 0 {
			v.bad("logging.vmodule", "", "goes with logging.format text only")
		}
		l.Format, l.VModule = logsapi.DefaultLogFormat, nil
	}
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		panic(err) // the gates are not there twice
	}
	for name, on := range c.FeatureGates {
		if _, known := gates.GetAll()[featuregate.Feature(name)]; known {
			if err := gates.SetFromMap(map[string]bool{name: on}); err != nil {
				v.bad("featureGates", name, err.Error())
			}
		}
	}
	v.errs = append(v.errs, logsapi.Validate(&l, gates, field.NewPath("logging"))...)
}
