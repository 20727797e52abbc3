package configuration

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/nkp-proxy/nkp/internal/config"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // kube-proxy's feature gates are talkative
	os.Exit(m.Run())
}

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// values are what may stand in a field, good and bad, in JSON. Two things are left out on purpose, where nkp differs: port 0,
// which it takes, and feature gates and versions of metrics, which mean nothing to it.
var values = map[string][]string{
	"bindAddress":                         {`""`, `"10.1.2.3"`, `"::"`, `"fd00::1"`, `"010.001.2.3"`, `"10.1.2"`, `"node"`, `7`},
	"healthzBindAddress":                  {`"10.1.2.3"`, `"10.1.2.3:80"`, `"[::1]:80"`, `"::1"`, `"[::1]"`, `"x:80"`, `":80"`, `"10.1.2.3:99999"`, `"10.1.2.3:-1"`, `"10.1.2.3:http"`, `"10.1.2.3:"`, `"10.1.2.3:+80"`, `"10.1.2.3:080"`, `"a b"`},
	"metricsBindAddress":                  {`"10.1.2.3"`, `"[fd00::1]:1"`, `"10.1.2.3:65535"`, `"10.1.2.3:65536"`, `"127.000.0.1:80"`, `"localhost:80"`},
	"bindAddressHardFail":                 {`true`, `"true"`, `1`},
	"enableProfiling":                     {`true`, `null`},
	"clientConnection.kubeconfig":         {`"/k"`, `null`, `3`},
	"clientConnection.acceptContentTypes": {`"application/json"`},
	"clientConnection.contentType":        {`"application/json"`, `"x"`},
	"clientConnection.qps":                {`-1`, `0.5`, `1e9`, `"3"`},
	"clientConnection.burst":              {`-1`, `1`, `5000000000`, `1.5`},
	"clusterCIDR":                         {`"10.0.0.0/8"`, `"10.0.0.0/8,fd00::/64"`, `"fd00::/64,10.0.0.0/8"`, `"10.0.0.0/8,11.0.0.0/8"`, `"10.0.0.0/8, fd00::/64"`, `"10.0.0.0/8,fd00::/64,11.0.0.0/8"`, `"10.0.0.0"`, `","`, `"10.0.0.0/33"`, `"010.0.0.0/8"`, `"10.1.1.1/8"`, `"x"`},
	"configSyncPeriod":                    {`"1s"`, `"-1s"`, `"x"`, `3`, `"0s"`},
	"conntrack.maxPerCore":                {`-1`, `0`, `1`, `3000000000`, `null`},
	"conntrack.min":                       {`-1`, `0`, `7`, `"7"`},
	"conntrack.tcpEstablishedTimeout":     {`"-1s"`, `"0s"`, `"3h"`},
	"conntrack.tcpCloseWaitTimeout":       {`"-1ns"`, `"0"`, `"1m"`, `null`},
	"conntrack.tcpBeLiberal":              {`true`, `"yes"`},
	"conntrack.udpTimeout":                {`"-5s"`, `"5s"`},
	"conntrack.udpStreamTimeout":          {`"-5s"`, `"5s"`},
	"detectLocalMode":                     {`"ClusterCIDR"`, `"NodeCIDR"`, `"BridgeInterface"`, `"InterfaceNamePrefix"`, `"clustercidr"`, `"None"`},
	"detectLocal.bridgeInterface":         {`"br0"`, `""`},
	"detectLocal.interfaceNamePrefix":     {`"veth"`},
	"hostnameOverride":                    {`"node-1"`, `" Node-1 "`, `7`},
	"iptables.masqueradeBit":              {`-1`, `0`, `31`, `32`, `null`},
	"iptables.masqueradeAll":              {`true`},
	"iptables.localhostNodePorts":         {`false`, `null`},
	"iptables.syncPeriod":                 {`"-1s"`, `"500ms"`, `"1m"`},
	"iptables.minSyncPeriod":              {`"-1s"`, `"31s"`, `"30s"`, `"1ms"`},
	"ipvs.syncPeriod":                     {`"-1s"`, `"500ms"`, `"1m"`},
	"ipvs.minSyncPeriod":                  {`"-1s"`, `"31s"`, `"2s"`},
	"ipvs.scheduler":                      {`"rr"`},
	"ipvs.excludeCIDRs":                   {`["10.0.0.0/8"]`, `["10.0.0.0"]`, `[]`, `"10.0.0.0/8"`},
	"ipvs.strictARP":                      {`true`},
	"ipvs.tcpTimeout":                     {`"-1s"`, `"1s"`},
	"ipvs.tcpFinTimeout":                  {`"-1s"`, `"1s"`},
	"ipvs.udpTimeout":                     {`"-1s"`, `"1s"`},
	"logging.format":                      {`"json"`, `"text"`, `"xml"`},
	"logging.flushFrequency":              {`"1s"`, `5000000000`, `-1`, `"-1s"`},
	"logging.verbosity":                   {`3`, `-1`, `2147483647`, `2147483648`},
	"logging.vmodule":                     {`[{"filePattern":"a","verbosity":3}]`, `[{"filePattern":"","verbosity":3}]`, `[{"filePattern":"a=b"}]`},
	"logging.options":                     {`{"text":{"splitStream":true}}`, `{"json":{"infoBufferSize":"7"}}`, `{"json":{"infoBufferSize":"0"}}`},
	"mode":                                {`"iptables"`, `"ipvs"`, `"nftables"`, `"kernelspace"`, `"userspace"`, `"ovs"`},
	"nftables.masqueradeBit":              {`-1`, `5`, `32`},
	"nftables.masqueradeAll":              {`true`},
	"nftables.syncPeriod":                 {`"-1s"`, `"500ms"`, `"1m"`},
	"nftables.minSyncPeriod":              {`"-1s"`, `"31s"`, `"2s"`},
	"nodePortAddresses":                   {`["10.0.0.0/8"]`, `["10.1.2.3/8","fd00::/64"]`, `["primary"]`, `["primary","10.0.0.0/8"]`, `["10.0.0.0/8","primary"]`, `["localhost","primary","all"]`, `["localhost","fd00::/64","localhost"]`, `["all","all"]`, `["Primary"]`, `["10.0.0.0"]`, `[""]`, `["10.0.0.0/8",null]`},
	"oomScoreAdj":                         {`-1000`, `-1001`, `1000`, `1001`, `null`},
	"portRange":                           {`"1-2"`},
	"winkernel.networkName":               {`"n"`},
	"winkernel.sourceVip":                 {`"10.1.1.1"`},
	"winkernel.enableDSR":                 {`true`},
	"winkernel.rootHnsEndpointName":       {`"cbr0"`},
	"winkernel.forwardHealthCheckVip":     {`true`},
	"windowsRunAsService":                 {`true`},
	"featureGates":                        {`{}`, `{"LoggingAlphaOptions":true}`, `{"AllowServiceExternalIPs":false}`, `[]`},
	"unknown":                             {`3`, `{"a":[1]}`},
	"conntrack.unknown":                   {`3`},
	"iptables.MasqueradeBit":              {`5`}, // names are taken as they are written
}

// Files of one field, of two, and of a random few: the verdict is kube-proxy's, and so is what the fields say in the end.
func TestSameVerdict(t *testing.T) {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	good, bad := 0, 0
	check := func(fields map[string]string) {
		t.Helper()
		ok := compare(t, fields)
		if ok {
			good++
		} else {
			bad++
		}
	}
	check(nil)
	for _, a := range names {
		for _, va := range values[a] {
			check(map[string]string{a: va})
			for _, mode := range []string{`"nftables"`, `"ipvs"`} {
				check(map[string]string{"mode": mode, a: va})
			}
			for _, detect := range values["detectLocalMode"] {
				check(map[string]string{"detectLocalMode": detect, a: va})
			}
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		fields := map[string]string{}
		for range 2 + r.IntN(6) {
			name := names[r.IntN(len(names))]
			fields[name] = values[name][r.IntN(len(values[name]))]
		}
		check(fields)
	}
	t.Logf("%d files that kube-proxy takes, %d that it refuses", good, bad)
	if good < 1000 || bad < 1000 {
		t.Errorf("%d good and %d bad files compare too little", good, bad)
	}
}

// compare returns kube-proxy's verdict.
func compare(t *testing.T, fields map[string]string) bool {
	t.Helper()
	text := file(fields)
	theirs, complains, theirErr := kubeProxySays(text)
	ours, ourErr := config.Parse("f", []byte(text))
	switch {
	case (theirErr == nil) != (ourErr == nil):
		t.Errorf("%s\nkube-proxy: %v\nnkp:        %v", text, theirErr, ourErr)
	case theirErr == nil:
		if warned := slices.ContainsFunc(ours.Warnings, func(w string) bool { return strings.Contains(w, "unknown field") }); warned != complains {
			t.Errorf("%s\nkube-proxy complains: %t; nkp warns %q", text, complains, ours.Warnings)
		}
		for _, f := range config.KubeProxyFields() {
			if !f.Counts(ours.KubeProxy) || f.Sets == "" {
				continue
			}
			want, got := f.Text(theirs), f.Text(ours.KubeProxy)
			if plain(want) != got && !(strings.HasSuffix(f.Path, "minSyncPeriod") && fields[f.Path] == "" && got == "0s") {
				t.Errorf("%s\n%s: kube-proxy %q, nkp %q", text, f.Path, want, got)
			}
		}
	}
	return theirErr == nil
}

// plain writes the addresses among the values as nkp writes them: without leading zeros, ranges from their beginning.
func plain(text string) string {
	return strings.NewReplacer("010.001.2.3", "10.1.2.3", "127.000.0.1", "127.0.0.1", ":+80", ":80", "010.0.0.0/8", "10.0.0.0/8",
		"10.1.1.1/8", "10.0.0.0/8", "10.1.2.3/8", "10.0.0.0/8", " Node-1 ", "node-1").Replace(text)
}

// file writes fields as a YAML file of JSON values.
func file(fields map[string]string) string {
	sections := map[string][]string{}
	for path, value := range fields {
		section, name, ok := strings.Cut(path, ".")
		if !ok {
			section, name = "", path
		}
		sections[section] = append(sections[section], fmt.Sprintf("%q: %s", name, value))
	}
	var b strings.Builder
	b.WriteString(head)
	for section, lines := range sections {
		slices.Sort(lines)
		if section == "" {
			b.WriteString(strings.Join(lines, "\n") + "\n")
		} else {
			fmt.Fprintf(&b, "%s: {%s}\n", section, strings.Join(lines, ", "))
		}
	}
	return b.String()
}

// The values cover every field, but the two that mean nothing to nkp.
func TestValuesCoverEveryField(t *testing.T) {
	for _, f := range config.KubeProxyFields() {
		if values[f.Path] == nil && f.Path != "showHiddenMetricsForVersion" && !strings.HasPrefix(f.Path, "logging.options.") {
			t.Errorf("no values for %s", f.Path)
		}
	}
}

// kubeadm's own file is taken without a word, and means the same.
func TestKubeadm(t *testing.T) {
	text, err := os.ReadFile("../../../../internal/config/testdata/kubeadm.conf")
	if err != nil {
		t.Fatal(err)
	}
	if _, complains, err := kubeProxySays(string(text)); err != nil || complains {
		t.Fatalf("kube-proxy: complains %t, error %v", complains, err)
	}
	f, err := config.Parse("kubeadm.conf", text)
	if err != nil || len(f.Warnings) > 0 {
		t.Errorf("nkp: %v, %v", f, err)
	}
}
