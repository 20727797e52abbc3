package ncpini

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The options that nkp uses are found in every spelling of oslo.config, and the others are named, without values.
func TestLoad(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       File
	}{
		{"empty", "", File{}},
		{"comments only", "[DEFAULT]\n# debug = True\n; ovs_bridge = br-1\n[k8s]\n", File{}},
		{"of today", `
[DEFAULT]
debug = True
[coe]
cluster = k8scluster
node_type = HOSTVM
[k8s]
apiserver_host_ip = 192.0.2.10
apiserver_host_port = 6443
client_token_file = /etc/nsx-ujo/token
ca_file = /etc/nsx-ujo/ca.crt
[nsx_v3]
nsx_api_password = s3cr3t
[nsx_node_agent]
ovs_bridge = br-int
ovs_uplink_port = ens192
`, File{Bridge: "br-int", Uplink: "ens192", Server: "https://192.0.2.10:6443", TokenFile: "/etc/nsx-ujo/token", CAFile: "/etc/nsx-ujo/ca.crt",
			Unused: "[DEFAULT] debug; [coe] cluster, node_type; [nsx_v3] nsx_api_password"}},
		{"of the kube proxy's time", "[nsx_kube_proxy]\novs_bridge: br-int\novs_uplink_port:1\n", File{Bridge: "br-int", Uplink: "1"}},
		{"both: the node agent's", "[nsx_kube_proxy]\novs_uplink_port=1\novs_bridge = br-k\n[nsx_node_agent]\novs_uplink_port=2\n",
			File{Bridge: "br-k", Uplink: "2", Unused: "[nsx_kube_proxy] ovs_uplink_port"}},
		{"the last one counts", "[nsx_node_agent]\novs_bridge = a\novs_bridge = b\n", File{Bridge: "b"}},
		{"quotes, other line ends", "[nsx_node_agent]\r\novs_bridge = \"br-1\"\r\n  \r\novs_uplink_port = 'u'\r\n", File{Bridge: "br-1", Uplink: "u"}},
		{"a byte order mark", "\ufeff[nsx_node_agent]\r\novs_bridge = br-1\r\n", File{Bridge: "br-1"}},
		{"continued lines", "[coe]\ntags =\n  a = b\n\t# c\n\n[nsx_node_agent]\novs_bridge =\n    br-1\n", File{Bridge: "br-1", Unused: "[coe] tags"}},
		{"certificates, IPv6", "[k8s]\napiserver_host_ip = fd00::1\napiserver_host_port = 6443\nclient_cert_file = c\nclient_private_key_file = k\nca_file = a\n",
			File{Server: "https://[fd00::1]:6443", CertFile: "c", KeyFile: "k", CAFile: "a"}},
		{"no port", "[k8s]\napiserver_host_ip = api.example.com\nuse_https = True\nclient_token_file = t\nca_file = a\n",
			File{Server: "https://api.example.com:443", TokenFile: "t", CAFile: "a", Unused: "[k8s] use_https"}},
	} {
		path := filepath.Join(t.TempDir(), "ncp.ini")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if *got != tc.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tc.name, *got, tc.want)
		}
	}
}

// An error names file and line, or option, and no value.
func TestLoadErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ncp.ini")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{
		"ovs_bridge = br-int\n":                                   "line 1: the option is in no [SECTION]",
		"[k8s\n":                                                  `line 1: "[k8s" is not [SECTION]`,
		"[ ]\n":                                                   "is not [SECTION]",
		"[k8s]\ns3cr3t\n":                                         "line 2: it is neither NAME = VALUE",
		"[k8s]\n= s3cr3t\n":                                       "line 2: the option has no name",
		"[k8s]\n  ca_file = s3cr3t\n":                             "line 2: it is indented, and continues no value",
		"[k8s]\na = b\n\n  s3cr3t\n":                              "line 4: it is indented",
		"[k8s]\nca_file = $s3cr3t/ca\n":                           "[k8s] ca_file: it refers to another option",
		"[k8s]\napiserver_host_ip=a,b\n":                          "[k8s] apiserver_host_ip: NSX and nkp take one address: write that of the API servers' load balancer",
		"\xff\xfe[\x00k\x008\x00s\x00]\x00\n\x00":                 "it is in UTF-16, or no text: save it as UTF-8",
		"\xfe\xff\x00[\x00k\x008\x00s\x00]\x00\n":                 "it is in UTF-16",
		"[\x00k\x008\x00s\x00]\x00\n\x00":                         "it is in UTF-16",
		"[k8s]\napiserver_host_ip=https://192.0.2.10\n":           "[k8s] apiserver_host_ip: it is no address or name",
		"[k8s]\napiserver_host_ip=192.0.2.10:6443\n":              "[k8s] apiserver_host_ip: it is no address or name",
		"[k8s]\napiserver_host_ip=a\napiserver_host_port=https\n": "[k8s] apiserver_host_port: it is no port",
		strings.Repeat("# long\n", 1<<18):                         "more than 1048576 bytes",
		strings.Repeat("#", 2<<20):                                "more than 1048576 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// FuzzParse holds that every text is parsed or refused, and that every option has section and name.
func FuzzParse(f *testing.F) {
	f.Add("[k8s]\na = b\n  c\n; d\n[e]\nf: 'g'\n")
	f.Add("[a]\n=\n")
	f.Fuzz(func(t *testing.T, text string) {
		options, err := parse(text)
		for _, o := range options {
			if err == nil && (o.section == "" || o.name == "") {
				t.Errorf("%q: %+v", text, o)
			}
		}
	})
}
