package config

import (
	"reflect"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// KubeProxy is kube-proxy's configuration.
type KubeProxy = v1alpha1.KubeProxyConfiguration

// KubeProxyField is a field of kube-proxy's configuration, and what nkp does with it.
type KubeProxyField struct {
	Path string // as a file writes it, for example conntrack.min
	// Flag is kube-proxy's flag for the same setting; "": there is none.
	Flag string
	// Sets is the flag of nkp run that the field stands for; "": the field has no effect.
	Sets string
	// Note describes what nkp does with the field, for the documentation.
	Note string

	modes []v1alpha1.ProxyMode // kube-proxy's modes in which the field applies; nil: all
	index []int
}

// Modes of kube-proxy. They choose between sections of the file, never a data plane of nkp's.
const (
	modeIPTables    v1alpha1.ProxyMode = "iptables"
	modeIPVS        v1alpha1.ProxyMode = "ipvs"
	modeNFTables    v1alpha1.ProxyMode = "nftables"
	modeKernelspace v1alpha1.ProxyMode = "kernelspace"
)

var (
	exceptNFTables = []v1alpha1.ProxyMode{"", modeIPTables, modeIPVS, modeKernelspace}
	exceptIPVS     = []v1alpha1.ProxyMode{"", modeIPTables, modeKernelspace}
	onlyIPVS       = []v1alpha1.ProxyMode{modeIPVS}
	onlyNFTables   = []v1alpha1.ProxyMode{modeNFTables}
)

// kubeProxyFields is the table of kube-proxy's fields; a test holds it complete.
var kubeProxyFields = place([]KubeProxyField{
	{Path: "featureGates", Flag: "feature-gates", Sets: "feature-gates",
		Note: "`AllowServiceExternalIPs=false` leaves externalIPs alone; other gates are named in a warning"},
	{Path: "clientConnection.kubeconfig", Flag: "kubeconfig", Sets: "kubeconfig",
		Note: "how to reach the API server; unused with `--manifests`"},
	{Path: "clientConnection.acceptContentTypes",
		Note: "no effect: the API server is asked for Protobuf, and for JSON where it has no other"},
	{Path: "clientConnection.contentType", Flag: "kube-api-content-type", Sets: "kube-api-content-type",
		Note: "encoding of what is sent to the API server"},
	{Path: "clientConnection.qps", Flag: "kube-api-qps", Sets: "kube-api-qps",
		Note: "requests per second to the API server"},
	{Path: "clientConnection.burst", Flag: "kube-api-burst", Sets: "kube-api-burst",
		Note: "requests to the API server that may come at once"},
	{Path: "logging.format", Flag: "logging-format", Sets: "logging-format", Note: "`text` or `json`"},
	{Path: "logging.flushFrequency", Flag: "log-flush-frequency", Note: "no effect: nothing is held back"},
	{Path: "logging.verbosity", Flag: "v", Sets: "v",
		Note: "4 and more: debugging output, unless `logLevel` or `--log-level` says otherwise"},
	{Path: "logging.vmodule", Note: "no effect"},
	{Path: "logging.options.text.splitStream", Note: "no effect: everything goes to standard error"},
	{Path: "logging.options.text.infoBufferSize", Note: "no effect: nothing is held back"},
	{Path: "logging.options.json.splitStream", Note: "no effect: everything goes to standard error"},
	{Path: "logging.options.json.infoBufferSize", Note: "no effect: nothing is held back"},
	{Path: "hostnameOverride", Flag: "hostname-override", Sets: "hostname-override",
		Note: "name of this node's Node object; the flag wins over the file"},
	{Path: "bindAddress", Flag: "bind-address", Sets: "bind-address",
		Note: "the node's address of that family, in place of the Node object's; nothing listens there"},
	{Path: "healthzBindAddress", Flag: "healthz-bind-address", Sets: "healthz-bind-address",
		Note: "where `/healthz` and `/livez` are; port 0 (which kube-proxy refuses): any that is free"},
	{Path: "metricsBindAddress", Flag: "metrics-bind-address", Sets: "metrics-bind-address",
		Note: "where `/metrics` is; port 0 (which kube-proxy refuses): any that is free"},
	{Path: "bindAddressHardFail", Flag: "bind-address-hard-fail", Sets: "bind-address-hard-fail",
		Note: "end with an error if an address cannot be listened on"},
	{Path: "enableProfiling", Flag: "profiling", Sets: "profiling",
		Note: "`/debug/pprof` beside the metrics"},
	{Path: "showHiddenMetricsForVersion", Flag: "show-hidden-metrics-for-version",
		Note: "no effect: nkp hides no metrics"},
	{Path: "mode", Flag: "proxy-mode",
		Note: "never chooses nkp's data plane (`--mode` does); it says which section below counts, and " +
			"with `nftables` an empty nodePortAddresses means `primary`, as in kube-proxy"},
	{Path: "iptables.masqueradeBit", Flag: "iptables-masquerade-bit", Sets: "iptables-masquerade-bit",
		Note: "bit of the packet mark that asks for masquerading"},
	{Path: "iptables.masqueradeAll", Flag: "masquerade-all", Sets: "masquerade-all",
		Note:  "masquerade all traffic to ClusterIPs, in every data plane; not with mode `nftables`",
		modes: exceptNFTables},
	{Path: "iptables.localhostNodePorts", Flag: "iptables-localhost-nodeports",
		Sets: "iptables-localhost-nodeports", Note: "NodePorts on IPv4 loopback addresses, in iptables"},
	{Path: "iptables.syncPeriod", Flag: "iptables-sync-period", Sets: "iptables-sync-period",
		Note: "how often to check that the rules are installed; twice that without progress is unhealthy; " +
			"not with mode `nftables` or `ipvs`",
		modes: exceptIPVS},
	{Path: "iptables.minSyncPeriod", Flag: "iptables-min-sync-period", Sets: "iptables-min-sync-period",
		Note: "minimum time between two iptables transactions; default 0 (kube-proxy: 1s), because nkp " +
			"writes only changes",
		modes: exceptIPVS},
	{Path: "ipvs.syncPeriod", Flag: "ipvs-sync-period", Sets: "iptables-sync-period",
		Note: "with mode `ipvs`: as iptables.syncPeriod", modes: onlyIPVS},
	{Path: "ipvs.minSyncPeriod", Flag: "ipvs-min-sync-period", Sets: "iptables-min-sync-period",
		Note: "with mode `ipvs`: as iptables.minSyncPeriod", modes: onlyIPVS},
	{Path: "ipvs.scheduler", Flag: "ipvs-scheduler", Note: "no effect: endpoints are chosen at random"},
	{Path: "ipvs.excludeCIDRs", Flag: "ipvs-exclude-cidrs", Note: "no effect: nkp touches nothing of IPVS"},
	{Path: "ipvs.strictARP", Flag: "ipvs-strict-arp",
		Note: "no effect: no Service address is put on an interface"},
	{Path: "ipvs.tcpTimeout", Flag: "ipvs-tcp-timeout",
		Note: "no effect: see conntrack.tcpEstablishedTimeout"},
	{Path: "ipvs.tcpFinTimeout", Flag: "ipvs-tcpfin-timeout", Note: "no effect"},
	{Path: "ipvs.udpTimeout", Flag: "ipvs-udp-timeout", Note: "no effect: see conntrack.udpTimeout"},
	{Path: "nftables.masqueradeBit", Note: "no effect: see iptables.masqueradeBit"},
	{Path: "nftables.masqueradeAll", Flag: "masquerade-all", Sets: "masquerade-all",
		Note: "with mode `nftables`: as iptables.masqueradeAll", modes: onlyNFTables},
	{Path: "nftables.syncPeriod", Flag: "iptables-sync-period", Sets: "iptables-sync-period",
		Note: "with mode `nftables`: as iptables.syncPeriod", modes: onlyNFTables},
	{Path: "nftables.minSyncPeriod", Flag: "iptables-min-sync-period", Sets: "iptables-min-sync-period",
		Note: "with mode `nftables`: as iptables.minSyncPeriod", modes: onlyNFTables},
	{Path: "winkernel.networkName", Flag: "network-name", Sets: "network-name",
		Note: "HNS network of the pods"},
	{Path: "winkernel.sourceVip", Flag: "source-vip", Sets: "source-vip",
		Note: "source address of load-balanced connections; kube-proxy uses it on overlay networks only"},
	{Path: "winkernel.enableDSR", Flag: "enable-dsr", Sets: "enable-dsr",
		Note: "let ClusterIPs answer directly"},
	{Path: "winkernel.rootHnsEndpointName", Flag: "root-hnsendpoint-name", Sets: "root-hnsendpoint-name",
		Note: "HNS endpoint of the host; kube-proxy takes `cbr0` where it is left out"},
	{Path: "winkernel.forwardHealthCheckVip", Flag: "forward-healthcheck-vip",
		Sets: "forward-healthcheck-vip", Note: "forward health checks of load balancers to that endpoint"},
	{Path: "detectLocalMode", Flag: "detect-local-mode", Sets: "detect-local-mode",
		Note: "how pods are recognized"},
	{Path: "detectLocal.bridgeInterface", Flag: "pod-bridge-interface", Sets: "pod-bridge-interface",
		Note: "for `BridgeInterface`"},
	{Path: "detectLocal.interfaceNamePrefix", Flag: "pod-interface-name-prefix",
		Sets: "pod-interface-name-prefix", Note: "for `InterfaceNamePrefix`"},
	{Path: "clusterCIDR", Flag: "cluster-cidr", Sets: "cluster-cidr",
		Note: "pod address ranges of the cluster"},
	{Path: "nodePortAddresses", Flag: "nodeport-addresses", Sets: "nodeport-addresses",
		Note: "ranges of node addresses that serve NodePorts, and the keywords `primary`, `localhost` and " +
			"`all`"},
	{Path: "oomScoreAdj", Flag: "oom-score-adj", Sets: "oom-score-adj",
		Note: "how willing the kernel is to kill nkp when memory runs out"},
	{Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core", Sets: "conntrack-max-per-core",
		Note: "tracked connections for each CPU; 0: leave the limit"},
	{Path: "conntrack.min", Flag: "conntrack-min", Sets: "conntrack-min",
		Note: "tracked connections at least"},
	{Path: "conntrack.tcpEstablishedTimeout", Flag: "conntrack-tcp-timeout-established",
		Sets: "conntrack-tcp-timeout-established", Note: "0: leave it"},
	{Path: "conntrack.tcpCloseWaitTimeout", Flag: "conntrack-tcp-timeout-close-wait",
		Sets: "conntrack-tcp-timeout-close-wait", Note: "0: leave it"},
	{Path: "conntrack.tcpBeLiberal", Flag: "conntrack-tcp-be-liberal", Sets: "conntrack-tcp-be-liberal",
		Note: "accept TCP packets out of the window"},
	{Path: "conntrack.udpTimeout", Flag: "conntrack-udp-timeout", Sets: "conntrack-udp-timeout",
		Note: "0: leave it"},
	{Path: "conntrack.udpStreamTimeout", Flag: "conntrack-udp-timeout-stream",
		Sets: "conntrack-udp-timeout-stream", Note: "0: leave it"},
	{Path: "configSyncPeriod", Flag: "config-sync-period",
		Note: "no effect: nkp lists again only after a watch is interrupted"},
	{Path: "portRange", Note: "no effect, in kube-proxy too"},
	{Path: "windowsRunAsService", Flag: "windows-service", Sets: "windows-service",
		Note: "run under the Windows service manager"},
})

// place finds the fields in the type.
func place(fields []KubeProxyField) []KubeProxyField {
	for _, l := range leaves(reflect.TypeFor[KubeProxy]()) {
		if i := slices.IndexFunc(fields, func(f KubeProxyField) bool { return f.Path == l.path }); i >= 0 {
			fields[i].index = l.index
		}
	}
	return fields
}

// KubeProxyFields lists the fields of KubeProxyConfiguration.
func KubeProxyFields() []KubeProxyField { return slices.Clone(kubeProxyFields) }

// Counts reports whether the field applies in a configuration: some apply only in one of kube-proxy's modes.
func (f *KubeProxyField) Counts(c *KubeProxy) bool {
	return f.modes == nil || slices.Contains(f.modes, c.Mode)
}

// Text returns the field's value as a flag takes it.
func (f *KubeProxyField) Text(c *KubeProxy) string {
	text, _ := textOf(f.value(c))
	return text
}

// SetText sets the field to the text of a flag.
func (f *KubeProxyField) SetText(c *KubeProxy, text string) error { return setText(f.value(c), text) }

func (f *KubeProxyField) value(c *KubeProxy) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(f.index)
}

// WithoutEffect returns the names of the fields with a value other than the default that nkp does not
// implement.
func WithoutEffect(c *KubeProxy) []string {
	var names []string
	usual := NewKubeProxy()
	for _, f := range kubeProxyFields {
		v := f.value(c)
		if f.Sets != "" && f.Counts(c) || f.Path == "mode" || v.IsZero() ||
			reflect.DeepEqual(v.Interface(), f.value(usual).Interface()) {
			continue
		}
		if v.Kind() == reflect.Slice && v.Len() == 0 {
			continue
		}
		names = append(names, f.Path)
	}
	return names
}

// Kind returns the type of the field's values, as a flag's help names it.
func (f *KubeProxyField) Kind() string {
	t := reflect.TypeFor[KubeProxy]().FieldByIndex(f.index).Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case isValue(t):
		return "duration"
	case t.Kind() == reflect.Slice:
		return "strings"
	case t.Kind() == reflect.Map:
		return "NAME=BOOL,..."
	case t.Kind() == reflect.String, t.Kind() == reflect.Bool:
		return t.Kind().String()
	}
	return "number"
}
