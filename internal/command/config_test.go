package command

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/config"
)

// parse returns a run command with the flags of a command line and of a file, "" for none, and its settings. The text CONFIG
// stands for the file among the arguments.
func parse(t *testing.T, file string, args ...string) (*settings, *cobra.Command, error) {
	t.Helper()
	s := newSettings()
	cmd := &cobra.Command{Use: "run"}
	s.runFlags(cmd.Flags())
	cmd.SetGlobalNormalizationFunc(dashes)
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.conf")
		must(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return s, cmd, s.prepare(cmd)
}

const kubeProxyHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
const nkpHead = "apiVersion: nkp-proxy.github.io/v1alpha1\nkind: NkpConfiguration\n"

// A command line of kube-proxy's works as it is: run has every flag of kube-proxy's, which takes what kube-proxy's takes.
// test/k8s/differential holds the list in step with kube-proxy.
func TestKubeProxysFlags(t *testing.T) {
	list, err := os.ReadFile("testdata/kube-proxy-flags.txt")
	must(t, err)
	s := newSettings()
	cmd := &cobra.Command{}
	s.runFlags(cmd.Flags())
	n := 0
	for line := range strings.Lines(string(list)) {
		words := strings.Split(strings.TrimSpace(line), "\t")
		name, shorthand, kind := strings.ReplaceAll(words[0], "_", "-"), words[1], words[2]
		usual, err := strconv.Unquote(words[3])
		must(t, err)
		n++
		f := cmd.Flags().Lookup(name)
		if f == nil {
			t.Errorf("run has no flag --%s", name)
			continue
		}
		if f.Shorthand != shorthand {
			t.Errorf("--%s: shorthand %q, kube-proxy's is %q", name, f.Shorthand, shorthand)
		}
		if kind == "bool" && f.NoOptDefVal != "true" {
			t.Errorf("--%s cannot be given without a value", name)
		}
		if err := f.Value.Set(strings.Trim(usual, "[]")); err != nil {
			t.Errorf("--%s does not take kube-proxy's default %q: %v", name, usual, err)
		}
	}
	if n < 50 {
		t.Errorf("the list has %d flags only", n)
	}
}

// --nodeport-addresses takes ranges and kube-proxy's keywords in any order, each keyword once.
func TestNodePortAddresses(t *testing.T) {
	for _, tc := range []struct {
		flag    string
		primary bool
		ranges  string
		err     string
	}{
		{"", false, "", ""},
		{"primary", true, "", ""},
		{"localhost", false, "127.0.0.0/8,::1/128", ""},
		{"all", false, "0.0.0.0/0,::/0", ""},
		{"10.1.2.3/8,primary,localhost", true, "10.0.0.0/8,127.0.0.0/8,::1/128", ""},
		{"localhost,fd00::/64,localhost", false, "", `"localhost": is listed twice`},
		{"Primary", false, "", `"Primary"`},
		{"10.0.0.1", false, "", `"10.0.0.1"`},
	} {
		s, _, err := parse(t, "", "--nodeport-addresses="+tc.flag)
		if err == nil {
			err = s.resolveAddresses()
		}
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%q: error %v, want one that names %s", tc.flag, err, tc.err)
		case tc.err == "" && err != nil:
			t.Errorf("%q: %v", tc.flag, err)
		case tc.err == "" && (s.NodePortPrimary != tc.primary || prefixesFlag(&s.NodePortAddresses).String() != tc.ranges):
			t.Errorf("%q: primary %t, ranges %v", tc.flag, s.NodePortPrimary, s.NodePortAddresses)
		}
	}
}

// Every setting of run can be in the file, and every field of the file has its flag.
func TestEveryFlagHasAField(t *testing.T) {
	s := newSettings()
	cmd := &cobra.Command{}
	s.runFlags(cmd.Flags())
	fields := map[string]bool{}
	for _, f := range config.NkpFields() {
		fields[f.Flag] = true
	}
	for _, f := range config.KubeProxyFields() {
		if f.Sets != "" {
			fields[f.Sets] = true
		}
	}
	for name := range fields {
		if cmd.Flags().Lookup(name) == nil {
			t.Errorf("a field stands for --%s, which run does not have", name)
		}
	}
	// What says which file, or what to do instead, is no setting; the master overrides what the kubeconfig says.
	none := []string{"config", "ncp-ini", "write-config-to", "init-only", "cleanup", "version", "healthz-port", "metrics-port", "master"}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, unused := f.Value.(*unusedValue); !unused && !fields[f.Name] && !slices.Contains(none, f.Name) {
			t.Errorf("--%s cannot be set by a file: give NkpConfiguration (internal/config/nkp.go) a field for it", f.Name)
		}
	})
}

// Without a file, and with a file that says nothing, everything is the same but what --config is.
func TestDefaultsAgree(t *testing.T) {
	_, plain, err := parse(t, "")
	must(t, err)
	_, empty, err := parse(t, kubeProxyHead+"---\n"+nkpHead)
	must(t, err)
	plain.Flags().VisitAll(func(f *pflag.Flag) {
		got := empty.Flags().Lookup(f.Name).Value.String()
		if f.Name == "root-hnsendpoint-name" && runtime.GOOS == "windows" {
			return
		}
		if f.Name != "config" && got != f.Value.String() {
			t.Errorf("--%s is %q by default and %q with an empty file", f.Name, f.Value, got)
		}
		if got := f.Value.String(); got != f.DefValue && !slices.Contains([]string{"hostname-override"}, f.Name) {
			t.Errorf("--%s is %q although its default is %q", f.Name, got, f.DefValue)
		}
	})
}

// Who wins: kube-proxy's file over kube-proxy's flags, but for a few; nkp's flags over nkp's file.
func TestPrecedence(t *testing.T) {
	const file = kubeProxyHead + "clusterCIDR: 10.1.0.0/16\nhostnameOverride: by-file\nclientConnection: {kubeconfig: /by-file}\niptables: {masqueradeAll: true}\nlogging: {verbosity: 4, format: json}\n" +
		"---\n" + nkpHead + "mode: iptables\novs: {bridge: br-file, wait: 3s}\nserviceCIDRs: [10.96.0.0/12]\n"
	for _, tc := range []struct {
		name, file string
		args       []string
		want       map[string]string // flag -> value
		warnings   []string
	}{
		{"the file alone", file, nil, map[string]string{
			"cluster-cidr": "10.1.0.0/16", "hostname-override": "by-file", "kubeconfig": "/by-file", "masquerade-all": "true", "logging-format": "json",
			"log-level": "debug", "mode": "iptables", "bridge": "br-file", "ovs-wait": "3s", "service-cidr": "10.96.0.0/12", "iptables-masquerade-bit": "14",
		}, nil},
		{"kube-proxy's flags beside it", file, []string{"--cluster-cidr=10.9.0.0/16", "--kubeconfig=/by-flag", "--masquerade-all=false", "--healthz-port=1", "--hostname-override= By-Flag ", "-v2"}, map[string]string{
			"cluster-cidr": "10.1.0.0/16", "kubeconfig": "/by-file", "masquerade-all": "true", "hostname-override": "by-flag", "log-level": "info", "healthz-bind-address": "0.0.0.0:10256",
		}, []string{", as in kube-proxy: --cluster-cidr, --healthz-port, --kubeconfig, --masquerade-all"}},
		{"nkp's flags beside it", file, []string{"--mode=ovs", "--bridge=br-flag", "--log-level=warn"}, map[string]string{
			"mode": "ovs", "bridge": "br-flag", "ovs-wait": "3s", "log-level": "warn",
		}, nil},
		{"manifests instead of the API server", file, []string{"--manifests=/m"}, map[string]string{"manifests": "/m", "kubeconfig": ""},
			[]string{"clientConnection.kubeconfig is not used"}},
		{"a kubeconfig that the file does not name", kubeProxyHead, []string{"--kubeconfig=/by-flag"}, map[string]string{"kubeconfig": "/by-flag"}, nil},
		{"only nkp's document", nkpHead + "mode: ovs\n", []string{"--cluster-cidr=10.9.0.0/16"}, map[string]string{"cluster-cidr": "10.9.0.0/16", "mode": "ovs"}, nil},
		{"mode nftables", kubeProxyHead + "mode: nftables\nnftables: {masqueradeAll: true, minSyncPeriod: 2s}\niptables: {minSyncPeriod: 9s}\n", nil,
			map[string]string{"masquerade-all": "true", "iptables-min-sync-period": "2s", "nodeport-addresses": "primary", "mode": "auto"},
			[]string{"iptables.minSyncPeriod", "does not choose the data plane"}},
		{"mode ipvs by flags", "", []string{"--proxy-mode=ipvs", "--ipvs-sync-period=7s", "--ipvs-scheduler=rr", "--iptables-sync-period=9s"},
			map[string]string{"mode": "auto"}, []string{"--proxy-mode ipvs does not choose", "no effect here: --ipvs-scheduler"}},
		{"addresses without ports", "", []string{"--healthz-bind-address=10.0.0.1", "--metrics-bind-address=::1", "--bind-address=10.0.0.1"},
			map[string]string{"healthz-bind-address": "10.0.0.1:10256", "metrics-bind-address": "[::1]:10249", "bind-address": "10.0.0.1"}, nil},
		{"the old port flags", "", []string{"--healthz-bind-address=10.0.0.1", "--healthz-port=1", "--metrics-port=0"},
			map[string]string{"healthz-bind-address": "10.0.0.1:1", "metrics-bind-address": ""}, nil},
		{"underscores", "", []string{"--cluster_cidr=10.9.0.0/16"}, map[string]string{"cluster-cidr": "10.9.0.0/16"}, nil},
		{"more ranges than kube-proxy takes", "", []string{"--cluster-cidr=10.9.0.0/16,10.10.0.0/16,fd00::/64"}, map[string]string{"cluster-cidr": "10.9.0.0/16,10.10.0.0/16,fd00::/64"}, nil},
	} {
		s, cmd, err := parse(t, tc.file, tc.args...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		for name, want := range tc.want {
			if got := cmd.Flags().Lookup(name).Value.String(); got != want {
				t.Errorf("%s: --%s is %q, want %q", tc.name, name, got, want)
			}
		}
		all := strings.Join(s.cfg.warnings, "\n")
		for _, w := range tc.warnings {
			if !strings.Contains(all, w) {
				t.Errorf("%s: no warning has %q:\n%s", tc.name, w, all)
			}
		}
		if len(tc.warnings) == 0 && all != "" {
			t.Errorf("%s: warnings:\n%s", tc.name, all)
		}
	}
}

// What is wrong names the flag where a flag is wrong, and the file and the field where those are.
func TestErrorsNameTheirSource(t *testing.T) {
	for _, tc := range []struct {
		file string
		args []string
		want string
		exit int
	}{
		{"", []string{"--conntrack-min=-1"}, "--conntrack-min: Invalid value: -1", exitUsage},
		{"", []string{"--iptables-min-sync-period=40s"}, "--iptables-sync-period: ", exitUsage},
		{"", []string{"--detect-local-mode=BridgeInterface"}, "--pod-bridge-interface", exitUsage},
		{"", []string{"--hostname-override=  "}, "--hostname-override is blank", exitUsage},
		{kubeProxyHead + "oomScoreAdj: 2000\n", nil, "KubeProxyConfiguration.oomScoreAdj: Invalid value: 2000", exitFailure},
		{kubeProxyHead + "winkernel: {sourceVip: here}\n", nil, "KubeProxyConfiguration.winkernel.sourceVip", exitFailure},
		{nkpHead + "mode: ipvs\n", nil, "NkpConfiguration.mode: --mode", exitFailure},
		{nkpHead + "ovs: {layout: {tableBase: 300}}\n", nil, "NkpConfiguration.ovs.layout.tableBase", exitFailure},
		{nkpHead + "skipServices: [kube-dns]\n", nil, "NkpConfiguration.skipServices", exitFailure},
		{nkpHead + "node: {mac: x}\n", nil, "NkpConfiguration.node.mac", exitFailure},
	} {
		_, _, err := parse(t, tc.file, tc.args...)
		if err == nil || !strings.Contains(err.Error(), tc.want) || tc.file != "" && !strings.Contains(err.Error(), "config.conf") {
			t.Errorf("%q %q: error %v, want %q", tc.file, tc.args, err, tc.want)
			continue
		}
		if got := exitOf(err); got != tc.exit {
			t.Errorf("%v: exit status %d, want %d", err, got, tc.exit)
		}
	}
}

// What --write-config-to writes leads to the same settings.
func TestWriteConfig(t *testing.T) {
	args := []string{"--cluster-cidr=10.9.0.0/16", "--mode=ovs", "--bridge=br-x", "--iptables-sync-period=40s", "--feature-gates=AllowServiceExternalIPs=false",
		"--nodeport-addresses=10.0.0.0/8", "--next-table=70", "--node-mac=02:00:00:00:00:01", "--hairpin-ip=169.254.3.3", "--masquerade-all", "--log-level=warn", "--bind-address=10.1.1.1"}
	out := filepath.Join(t.TempDir(), "out.yaml")
	s, first, err := parse(t, "", append(args, "--write-config-to="+out)...)
	must(t, err)
	must(t, s.start(t.Context(), os.Stderr, os.Stderr))
	text, err := os.ReadFile(out)
	must(t, err)
	_, second, err := parse(t, string(text))
	must(t, err)
	first.Flags().VisitAll(func(f *pflag.Flag) {
		got := second.Flags().Lookup(f.Name).Value.String()
		if got != f.Value.String() && !slices.Contains([]string{"config", "write-config-to"}, f.Name) {
			t.Errorf("--%s was %q, is %q", f.Name, f.Value, got)
		}
	})
}

// The example says the defaults where it sets something, and shows every field of NkpConfiguration.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/config.yaml")
	must(t, err)
	_, plain, err := parse(t, "")
	must(t, err)
	s, example, err := parse(t, string(text))
	must(t, err)
	if len(s.cfg.warnings) > 0 {
		t.Errorf("warnings: %q", s.cfg.warnings)
	}
	plain.Flags().VisitAll(func(f *pflag.Flag) {
		if got := example.Flags().Lookup(f.Name).Value.String(); f.Name != "config" && got != f.Value.String() {
			t.Errorf("the example says --%s %q, the default is %q", f.Name, got, f.Value)
		}
	})
	all := regexp.MustCompile(`(?m)^(\s*)#(\w+:)`).ReplaceAllString(string(text), "$1$2")
	f, err := config.Parse("with everything", []byte(all))
	must(t, err)
	for _, field := range config.NkpFields() {
		if _, set := field.Text(f.Nkp); !set {
			t.Errorf("the example does not show %s", field.Path)
		}
	}
}

// plan with a file prints what it prints with the same flags.
func TestPlanTakesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	file := kubeProxyHead + "clusterCIDR: 10.1.0.0/16\nhostnameOverride: haofan-test-1\niptables: {masqueradeBit: 5, masqueradeAll: true}\n---\n" + nkpHead + "mode: iptables\n"
	must(t, os.WriteFile(path, []byte(file), 0o600))
	plan := func(args ...string) string {
		out, errOut, status := say(append([]string{"plan", "--manifests", guestbook}, args...)...)
		if status != exitOK {
			t.Fatalf("%q: exit status %d: %s", args, status, errOut)
		}
		return out
	}
	byFile := plan("--config", path)
	byFlags := plan("--cluster-cidr=10.1.0.0/16", "--hostname-override=haofan-test-1", "--iptables-masquerade-bit=5", "--masquerade-all", "--mode=iptables")
	if byFile != byFlags {
		t.Errorf("the file leads to\n%s\nthe flags to\n%s", byFile, byFlags)
	}
	if !strings.Contains(byFile, "0x20") || byFile == plan("--mode=iptables", "--hostname-override=haofan-test-1") {
		t.Error("the file had no effect")
	}
}

// exitOf returns the exit status that an error leads to.
func exitOf(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.status
	}
	return exitFailure
}

// The log is written as --logging-format says, from the level on that -v or --log-level says.
func TestLogFormat(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string // how the line of debugging output begins; "": there is none
	}{
		{nil, ""}, {[]string{"-v=3"}, ""}, {[]string{"--v=4"}, "time="}, {[]string{"--v=9", "--log-level=info"}, ""},
		{[]string{"--logging-format=json", "-v", "10"}, `{"time":`},
	} {
		s, _, err := parse(t, "", tc.args...)
		must(t, err)
		var out strings.Builder
		log, err := s.process.logger(&out)
		must(t, err)
		log.Debug("hello")
		if !strings.HasPrefix(out.String(), tc.want) || tc.want == "" && out.Len() > 0 {
			t.Errorf("%q: the log is %q", tc.args, &out)
		}
	}
}

// A new start is refused where the process is not nkp's own, as in this test; the error says that the file has changed.
func TestRestartIsForNkpAlone(t *testing.T) {
	if err := restart([]string{"run", "--config", "x"}); !errors.Is(err, errRestart) || !strings.Contains(err.Error(), "configuration file has changed") {
		t.Errorf("error %v", err)
	}
}

// A changed file is tried with the flags of the command line before anything else happens.
func TestTry(t *testing.T) {
	s, _, err := parse(t, nkpHead+"mode: auto\n", "--manifests=/m", "--bridge=br-x", "--healthz-port=7", "--hairpin-ip=169.254.1.1", "--feature-gates=A=true,B=false", "-v2")
	must(t, err)
	for text, want := range map[string]string{
		nkpHead + "mode: iptables\n":                           "",
		nkpHead + "mode: best\n":                               "NkpConfiguration.mode: --mode",
		nkpHead + "ovs: {hairpinIPs: [x]}\n":                   "", // the flag wins, what the file says is not looked at
		nkpHead + "ovs: {layout: {nextTable: 7}}\n":            "next table 7",
		nkpHead + "logLevel: loud\n":                           "--log-level",
		kubeProxyHead + "clientConnection: {kubeconfig: /k}\n": "", // --manifests wins
	} {
		f, err := config.Parse("f", []byte(text))
		must(t, err)
		if err := s.validateFile(f); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
