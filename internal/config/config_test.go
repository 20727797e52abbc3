package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The table has every field of kube-proxy's configuration, once, in the type's terms, and says what it is for.
func TestTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range kubeProxyFields {
		if seen[f.Path] {
			t.Errorf("%s is there twice", f.Path)
		}
		seen[f.Path] = true
		if f.index == nil {
			t.Errorf("kube-proxy's configuration has no field %s", f.Path)
		}
		if f.Note == "" {
			t.Errorf("%s: the note is missing", f.Path)
		}
		if (f.Sets == "") != strings.Contains(f.Note, "no effect") && f.Path != "mode" {
			t.Errorf("%s: sets %q, and the note says %q", f.Path, f.Sets, f.Note)
		}
	}
	for _, l := range leaves(reflect.TypeFor[KubeProxy]()) {
		if !seen[l.path] {
			t.Errorf("field %s of kube-proxy's configuration is not in the table: say what nkp does with it", l.path)
		}
	}
}

// Every field of NkpConfiguration stands for a flag of its own.
func TestNkpFieldsHaveFlags(t *testing.T) {
	seen := map[string]string{}
	for _, f := range NkpFields() {
		if f.Flag == "" {
			t.Errorf("%s has no flag", f.Path)
		}
		if other := seen[f.Flag]; other != "" {
			t.Errorf("%s and %s are both for --%s", other, f.Path, f.Flag)
		}
		seen[f.Flag] = f.Path
	}
}

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
const nkpHead = "apiVersion: nkp-proxy.github.io/v1alpha1\nkind: NkpConfiguration\n"

// A kubeadm ConfigMap's config.conf works as it is, and there is nothing to warn of.
func TestKubeadm(t *testing.T) {
	f, err := Load("testdata/kubeadm.conf")
	must(t, err)
	if len(f.Warnings) > 0 {
		t.Errorf("warnings: %q", f.Warnings)
	}
	c := f.KubeProxy
	if c.ClusterCIDR != "10.244.0.0/16" || c.ClientConnection.Kubeconfig != "/var/lib/kube-proxy/kubeconfig.conf" || *c.Conntrack.MaxPerCore != 32768 ||
		c.HealthzBindAddress != "0.0.0.0:10256" || c.DetectLocalMode != "ClusterCIDR" || c.IPTables.MinSyncPeriod.Duration != 0 {
		t.Errorf("not what kubeadm means: %+v", c)
	}
}

// What cannot be is an error that names document and field; what has no effect is a warning that names the field.
func TestVerdicts(t *testing.T) {
	for _, tc := range []struct{ name, text, err, warning string }{
		{"both documents", head + "---\n" + nkpHead, "", ""},
		{"JSON", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","oomScoreAdj":-5}`, "", ""},
		{"only comments before", "# hello\n---\n" + nkpHead + "mode: ovs\n", "", ""},
		{"empty", "", "holds neither", ""},
		{"text", "hello", "document 1: it is not a mapping with the texts apiVersion and kind", ""},
		{"a list for the kind", "apiVersion: v1\nkind: [ConfigMap]\n", "document 1: it is not a mapping", ""},
		{"not YAML", "a: b: c", "document 1", ""},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\n", `document 1: apiVersion "v1", kind "ConfigMap"`, ""},
		{"another version", "apiVersion: kubeproxy.config.k8s.io/v1beta9\nkind: KubeProxyConfiguration\n", "v1beta9", ""},
		{"twice", nkpHead + "---\n" + nkpHead, "document 2: there is a second NkpConfiguration", ""},
		{"unknown field", head + "clusterCIDRs: 10.0.0.0/8\n", "", `unknown field "clusterCIDRs"`},
		{"duplicate field", head + "clusterCIDR: 10.0.0.0/8\nclusterCIDR: 11.0.0.0/8\n", "", `clusterCIDR`},
		{"unknown field below", head + "conntrack: {maxi: 3}\n", "", `unknown field "conntrack.maxi"`},
		{"wrong type", head + "oomScoreAdj: often\n", "oomScoreAdj", ""},
		{"bad value", head + "conntrack: {min: -1}\n", "document 1: KubeProxyConfiguration.conntrack.min: Invalid value: -1", ""},
		{"two bad values", head + "oomScoreAdj: 1001\nbindAddress: x\n", "KubeProxyConfiguration.bindAddress", ""},
		{"without effect", head + "ipvs: {scheduler: rr}\nnftables: {masqueradeAll: true}\n", "", "no effect here: ipvs.scheduler, nftables.masqueradeAll"},
		{"mode", head + "mode: ipvs\n", "", "mode ipvs of KubeProxyConfiguration does not choose"},
		{"bad mode", head + "mode: userspace\n", "KubeProxyConfiguration.mode", ""},
		{"port 0", head + "healthzBindAddress: 127.0.0.1:0\n", "", ""},
		{"logging", head + "logging: {format: xml}\n", "KubeProxyConfiguration.logging.format", ""},
		{"unknown field of ours", nkpHead + "brigde: br-int\n", `document 1: NkpConfiguration: unknown field "brigde"`, ""},
		{"unknown field of ours below", nkpHead + "ovs: {brigde: br-int}\n", `unknown field "ovs.brigde"`, ""},
		{"field of ours twice", nkpHead + "mode: ovs\nmode: iptables\n", "mode", ""},
		{"wrong type of ours", nkpHead + "ovs: {wait: soon}\n", "soon", ""},
		{"huge", head + "#" + strings.Repeat("x", maxSize), "1048576 bytes", ""},
	} {
		path := filepath.Join(t.TempDir(), "config.conf")
		must(t, os.WriteFile(path, []byte(tc.text), 0o600))
		f, err := Load(path)
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: error %v, want one with %q that names the file", tc.name, err, tc.err)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: the error has more than one line: %q", tc.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case !strings.Contains(strings.Join(f.Warnings, "|"), tc.warning) || tc.warning == "" && len(f.Warnings) > 0:
			t.Errorf("%s: warnings %q, want %q", tc.name, f.Warnings, tc.warning)
		}
	}
}

// What is written says the same when it is read.
func TestWriteIsRead(t *testing.T) {
	f, err := Parse("f", []byte(head+"clusterCIDR: 10.0.0.0/8,fd00::/64\nfeatureGates: {AllowServiceExternalIPs: false}\nnodePortAddresses: [primary]\nconntrack: {udpTimeout: 3s}\niptables: {minSyncPeriod: 2s}\n---\n"+
		nkpHead+"ovs: {layout: {cookiePrefix: '0x123456', nextTable: 7}, wait: 3s, hairpinIPs: [169.254.1.1]}\n"))
	must(t, err)
	path := filepath.Join(t.TempDir(), "out.yaml")
	must(t, Write(path, f.KubeProxy, f.Nkp))
	g, err := Load(path)
	must(t, err)
	for _, field := range KubeProxyFields() {
		if was, is := field.Text(f.KubeProxy), field.Text(g.KubeProxy); was != is {
			t.Errorf("%s was %q, is %q", field.Path, was, is)
		}
	}
	if !reflect.DeepEqual(f.Nkp, g.Nkp) {
		t.Errorf("NkpConfiguration was %+v, is %+v", f.Nkp, g.Nkp)
	}
}

// Texts of flags and values of fields are each other's inverse, for every field.
func TestTextsRoundTrip(t *testing.T) {
	values := []string{"3s", "true", "7", "fd00::1,10.0.0.1", "A=true,B=false"}
	for _, field := range NkpFields() {
		ok := false
		for _, text := range values {
			c := NewNkpConfiguration()
			if err := field.SetText(c, text); err != nil {
				continue
			}
			if got, set := field.Text(c); !set || got != text {
				t.Errorf("%s: %q became %q", field.Path, text, got)
			}
			ok = true
		}
		if !ok {
			t.Errorf("%s takes no text", field.Path)
		}
	}
	for _, field := range KubeProxyFields() {
		if field.Flag == "" {
			continue
		}
		ok := false
		for _, text := range values {
			c := NewKubeProxy()
			if err := field.SetText(c, text); err == nil {
				ok = true
				if got := field.Text(c); got != text && field.Flag != "log-flush-frequency" {
					t.Errorf("%s: %q became %q", field.Path, text, got)
				}
			}
		}
		if !ok {
			t.Errorf("%s takes no text", field.Path)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "---\n" + nkpHead))
	f.Add([]byte(head + "conntrack: {min: -1}\nlogging: {vmodule: [{filePattern: a}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err == nil && file.KubeProxy == nil && file.Nkp == nil {
			t.Error("neither an error nor a configuration")
		}
		if err == nil && file.KubeProxy != nil && len(Validate(file.KubeProxy)) > 0 {
			t.Errorf("taken, and not valid: %v", Validate(file.KubeProxy))
		}
	})
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
