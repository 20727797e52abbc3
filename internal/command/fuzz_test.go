package command

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// offline are the commands that touch nothing on this machine as long as no flag leads them to a switch, a server or an agent.
var offline = []string{"plan", "trace", "version", "help"}

// leading are the beginnings of such flags, and of those that name files.
var leading = []string{"ovsdb", "openflow", "socket", "kubeconfig", "master", "live", "config", "write", "ca-cert", "certificate", "private"}

// wellEnded checks what every command promises: status 0, 1 or 2, and an error that is said.
func wellEnded(t *testing.T, args []string, status int, stderr string) {
	t.Helper()
	if status < exitOK || status > exitUsage {
		t.Errorf("%q ends with %d", args, status)
	}
	if status != exitOK && !strings.Contains(stderr, "nkp: ") {
		t.Errorf("%q ends with %d and says %.300q", args, status, stderr)
	}
}

// FuzzFlags runs commands with any arguments, one a line, after a good manifest file's. What would act on the machine is parsed
// and checked only. No command line may make nkp panic.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"plan\n-o\njson\n--hostname-override\nnode-1",
		"plan\n-o=ofctl\n--cluster-cidr=10.0.0.0/16,fd00::/48\n--node-ip=172.16.0.2\n--node-mac=02:00:00:00:00:02\n--gateway-mac=02:00:00:00:00:01",
		"plan\n--mode\niptables\n--iptables-masquerade-bit\n31\n--nodeport-addresses=primary",
		"plan\n--mode=windows\n--source-vip=1.2.3.4\n--table-base\n255\n--next-table=-1\n--group-base=0x70000000",
		"trace\n--from\n10.0.0.1\n--to\n40.0.0.1:80\n--protocol=sctp\n--in\n11",
		"run\n--conntrack-min=-1\n--reject-rate=0\n--detect-local-mode=InterfaceNamePrefix\n--pod-interface-name-prefix=x",
		"run\n--feature-gates=A=true,B=maybe\n--proxy_mode=ipvs\n-v\n4294967295",
		"diff\n--hairpin-ip=1.1.1.1,2.2.2.2", "status\n-o\nxml", "services\n--vip\n::", "cleanup\n--zone-dnat=65536", "version\nnow", "--help", "nonsense", "",
	} {
		f.Add(s)
	}
	f.Setenv("KUBERNETES_SERVICE_HOST", "")
	const manifest = "../../examples/guestbook.yaml"
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		leads := slices.ContainsFunc(args, func(a string) bool {
			name := strings.ReplaceAll(strings.TrimLeft(a, "-"), "_", "-")
			return a != "" && a[0] == '-' && slices.ContainsFunc(leading, func(l string) bool { return strings.HasPrefix(name, l) }) || len(a) > 1000
		})
		if slices.Contains(offline, args[0]) && !leads && !strings.Contains(text, "manifests") {
			var stderr bytes.Buffer
			if args[0] == "plan" || args[0] == "trace" {
				args = append(args, "--manifests="+manifest)
			}
			wellEnded(t, args, Main("nkp", args, io.Discard, &stderr), stderr.String())
			return
		}
		if leads {
			return
		}
		root := newRoot(io.Discard, io.Discard)
		disarm(root)
		root.SetArgs(args)
		err := root.Execute()
		var exit *exitError
		if errors.As(err, &exit) && (exit.status < exitOK || exit.status > exitUsage) {
			t.Errorf("%q ends with %d", args, exit.status)
		}
		s := newSettings()
		run := &cobra.Command{Use: "run", RunE: func(cmd *cobra.Command, _ []string) error { return s.prepare(cmd) }, SilenceErrors: true, SilenceUsage: true}
		s.runFlags(run.Flags())
		run.SetOut(io.Discard)
		run.SetErr(io.Discard)
		run.SetArgs(args[1:])
		if err := run.Execute(); err != nil && err.Error() == "" {
			t.Errorf("%q fails without a word", args)
		}
	})
}

// disarm makes commands do nothing once their arguments are parsed.
func disarm(cmd *cobra.Command) {
	cmd.RunE, cmd.Run = func(*cobra.Command, []string) error { return nil }, nil
	for _, c := range cmd.Commands() {
		disarm(c)
	}
}

// FuzzConfig reads anything as the file of --config.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\nclusterCIDR: 10.0.0.0/16\niptables: {syncPeriod: 30s}\n",
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {maxPerCore: -1, min: 9999999999}\n",
		`{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "nodePortAddresses": ["primary", 7]}`,
		"kind: [", "a: &a [*a, *a]\n", "---\n---\n", "\x00",
	} {
		f.Add([]byte(s))
	}
	f.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "config.yaml")
		must(t, os.WriteFile(file, data, 0o600))
		args := []string{"plan", "--config", file, "--manifests", "../../examples/guestbook.yaml"}
		var stderr bytes.Buffer
		status := Main("nkp", args, io.Discard, &stderr)
		wellEnded(t, args, status, stderr.String())
		if status != exitOK && stderr.Len() > 8<<10+len(data) {
			t.Errorf("%d bytes of errors for %d of configuration", stderr.Len(), len(data))
		}
	})
}
