//go:build !windows

package command

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// parseIn is parse with a configuration's directory.
func parseIn(t *testing.T, dir string, args ...string) (*settings, error) {
	t.Helper()
	s := newSettings()
	s.dir = dir
	cmd := &cobra.Command{Use: "run"}
	s.runFlags(cmd.Flags())
	must(t, cmd.ParseFlags(args))
	return s, s.prepare(cmd)
}

// What is in /etc/nkp takes the place of flags, flags win, and in a pod only flags count.
func TestInstalledConfiguration(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	const (
		config = nkpHead + "ovs: {bridge: br-config}\n"
		ini    = "[nsx_node_agent]\novs_bridge = br-ini\novs_uplink_port = eth9\n[k8s]\napiserver_host_ip = 192.0.2.1\napiserver_host_port = 6443\nca_file = /ca\nclient_token_file = /token\n"
	)
	for _, tc := range []struct {
		files, args string
		pod         bool
		want        string
	}{
		{"", "", false, "br-int"},
		{"kubeconfig", "", false, "br-int kubeconfig=DIR/kubeconfig"},
		{"manifests", "", false, "br-int manifests=DIR/manifests"},
		{"kubeconfig manifests", "", false, "br-int kubeconfig=DIR/kubeconfig DIR/manifests is not used, because DIR/kubeconfig is there, too: pass --manifests to serve the manifests"},
		{"config.yaml", "", false, "br-config"},
		{"config.yaml manifests", "--uplink-port eth1", false, "br-config eth1 manifests=DIR/manifests"},
		{"config.yaml kubeconfig", "--bridge br-flag", false, "br-flag kubeconfig=DIR/kubeconfig"},
		{"config.yaml kubeconfig", "--manifests /else", false, "br-int manifests=/else"},
		{"config.yaml kubeconfig", "--kubeconfig /else", false, "br-int kubeconfig=/else"},
		{"ncp.ini", "", false, "br-ini eth9 master=https://192.0.2.1:6443 /token /ca"},
		{"ncp.ini kubeconfig", "", false, "br-ini eth9 kubeconfig=DIR/kubeconfig"},
		{"ncp.ini kubeconfig", "--ncp-ini DIR/ncp.ini", false, "br-ini eth9 master=https://192.0.2.1:6443 /token /ca"},
		{"ncp.ini config.yaml", "", false, "br-config eth9 master=https://192.0.2.1:6443 /token /ca"},
		{"ncp.ini", "--ncp-ini DIR/ncp.ini --uplink-port 1 --kubeconfig /else", false, "br-ini 1 kubeconfig=/else"},
		{"ncp.ini", "--ncp-ini DIR/ncp.ini --bridge br-int --manifests /else", false, "br-int eth9 manifests=/else"},
		{"config.yaml ncp.ini kubeconfig manifests", "", true, "br-int"},
	} {
		dir := t.TempDir()
		for name := range strings.FieldsSeq(tc.files) {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(map[string]string{"config.yaml": config, "ncp.ini": ini}[name]), 0o600))
		}
		if tc.pod {
			t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
			t.Setenv("KUBERNETES_SERVICE_PORT", "1")
		}
		s, err := parseIn(t, dir, strings.Fields(strings.ReplaceAll(tc.args, "DIR", dir))...)
		must(t, err)
		got := []string{s.Bridge, s.Uplink}
		for _, f := range [][2]string{{"kubeconfig=", s.kubeconfig}, {"manifests=", s.manifests}, {"master=", s.master}} {
			if f[1] != "" {
				got = append(got, f[0]+f[1])
			}
		}
		got = append(append(got, s.api.TokenFile, s.api.CAFile), s.cfg.warnings...)
		text := strings.Join(strings.Fields(strings.ReplaceAll(strings.Join(got, " "), dir, "DIR")), " ")
		if text != tc.want {
			t.Errorf("files %q, flags %q:\n got %s\nwant %s", tc.files, tc.args, text, tc.want)
		}
	}
}

// A link that leads nowhere, as where NSX is not there yet, is an error that names it, and no reason to serve without its settings.
func TestInstalledLinkLeadsNowhere(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, name := range []string{"config.yaml", "ncp.ini"} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), nil, 0o600))
		must(t, os.Symlink("/nonexistent", filepath.Join(dir, name)))
		if _, err := parseIn(t, dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ncp.ini's other options are named in one line, which is no warning; an error in the file names it.
func TestNCPIni(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	path := filepath.Join(dir, "ncp.ini")
	write := func(text string) { must(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("[nsx_node_agent]\novs_bridge = br-1\nmtu = 1500\n[coe]\ncluster = c\n")
	s, err := parseIn(t, "", "--ncp-ini", path)
	must(t, err)
	want := []string{path + ": nkp does not use these options of NSX's: [nsx_node_agent] mtu; [coe] cluster"}
	if !slices.Equal(s.cfg.notes, want) || len(s.cfg.warnings) > 0 {
		t.Errorf("notes %q, warnings %q", s.cfg.notes, s.cfg.warnings)
	}
	write("[k8s]\nca_file: $x\n")
	if _, err := parseIn(t, "", "--ncp-ini", path); err == nil || !strings.Contains(err.Error(), "--ncp-ini: "+path+": [k8s] ca_file") {
		t.Errorf("error %v", err)
	}
}

// The unit starts nkp where, and only where, nkp finds its configuration without arguments.
func TestUnitFollowsWhatIsInstalled(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	unit, err := os.ReadFile("../../deploy/systemd/nkp.service")
	must(t, err)
	conditions := regexp.MustCompile(`(?m)^ConditionPathExists=\|`+regexp.QuoteMeta(defaultDir)+`/(\S+)$`).FindAllStringSubmatch(string(unit), -1)
	if len(conditions) != 4 || !strings.Contains(string(unit), "\nEnvironment=\"NKP_ARGS=\"\n") {
		t.Errorf("the unit has arguments of its own, or other conditions: %v", conditions)
	}
	for _, c := range conditions {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, c[1]), []byte(map[string]string{
			"config.yaml": nkpHead + "manifests: " + dir + "\n", "ncp.ini": "[k8s]\napiserver_host_ip = 192.0.2.1\n",
		}[c[1]]), 0o600))
		s, err := parseIn(t, dir)
		must(t, err)
		if err := s.needSource(); err != nil {
			t.Errorf("%s alone starts the unit, and nkp ends: %v", c[1], err)
		}
	}
	if s, err := parseIn(t, t.TempDir()); err != nil || s.needSource() == nil {
		t.Errorf("nothing is a source of Services: %v", err)
	}
}
