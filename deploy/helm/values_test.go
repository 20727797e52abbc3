package helm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// everything are values of which each is set.
const everything = `
apiServer: {host: 192.0.2.10, port: 443}
dataPlanes: [ovs, iptables]
ovs: {bridge: br-pods, uplinkPort: 1}
windows: {enabled: true, network: Calico, extraArgs: [--cluster-cidr=10.244.0.0/16], resources: {limits: {memory: 1Gi}}}
image: {registry: ghcr.io/me, tag: v9, pullPolicy: Never, pullSecrets: [mine]}
config: "kind: KubeProxyConfiguration"
extraArgs: [--log-level=debug, -v=2]
env: [{name: GOGC, value: "50"}]
nodeSelector: {pool: a}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions: [{key: zone, operator: In, values: [a]}]
      - matchFields: [{key: metadata.name, operator: In, values: [node-1]}]
tolerations: [{key: dedicated, operator: Exists}]
priorityClassName: system-cluster-critical
labels: {team: network, app.kubernetes.io/name: other}
annotations: {note: mine}
podLabels: {tier: node}
podAnnotations: {note: pods}
updateStrategy: {type: OnDelete}
resources: {requests: {cpu: 0.5}, limits: {memory: 3Gi}}
sysctlsResources: {limits: {memory: 20M}}
test: {resources: {limits: {memory: 1e8}}}
metrics: {expose: true}
prometheus: {podMonitor: {enabled: true}, rules: {enabled: true}}
`

// Every value is in every DaemonSet that it concerns.
func TestEveryValueIsUsed(t *testing.T) {
	rendered, err := render(t, parse(t, everything))
	if err != nil {
		t.Fatal(err)
	}
	common := []string{
		`"image":"ghcr.io/me/nkp`, `:v9"`, `"imagePullPolicy":"Never"`, `"imagePullSecrets":[{"name":"mine"}]`, `"pool":"a"`,
		`"team":"network"`, `"app.kubernetes.io/name":"nkp"`, `"annotations":{"note":"mine"}`, `"tier":"node"`, `"note":"pods"`,
		`"priorityClassName":"system-cluster-critical"`, `"tolerations":[{"key":"dedicated","operator":"Exists"}]`,
		`"updateStrategy":{"type":"OnDelete"}`, `{"name":"GOGC","value":"50"}`, `"--metrics-authorization"`, `"values":["node-1"]`,
	}
	linux := append([]string{`"--log-level=debug"`, `"-v=2"`, `"--config=/etc/nkp/config.yaml"`, `"cpu":0.5`, `"memory":"224Mi"`, `"memory":"3Gi"`}, common...)
	for name, want := range map[string][]string{
		"nkp-ovs":      append([]string{`"--bridge=br-pods"`, `"--uplink-port=1"`}, linux...),
		"nkp-iptables": append([]string{`"memory":"20M"`}, linux...),
		"nkp-windows":  append([]string{`"--cluster-cidr=10.244.0.0/16"`, `"memory":"1Gi"`}, common...),
	} {
		text := string(must(json.Marshal(rendered.objects["DaemonSet "+name])))
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s has no %s:\n%s", name, w, text)
			}
		}
		if strings.Contains(text, `"app.kubernetes.io/name":"other"`) || strings.Contains(text, "bridge") != (name == "nkp-ovs") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := string(must(json.Marshal(rendered.hooks))); !strings.Contains(text, `"memory":1e+08`) && !strings.Contains(text, `"memory":100000000`) {
		t.Errorf("the test has other resources: %s", text)
	}
}

// The data plane's expression is in each term of the required node affinity, because terms are alternatives.
func TestAffinity(t *testing.T) {
	o := mustRender(t, everything)
	mine := map[string]any{"key": "nkp-proxy.github.io/data-plane", "operator": "In", "values": []any{"ovs"}}
	want := []any{
		map[string]any{"matchExpressions": []any{map[string]any{"key": "zone", "operator": "In", "values": []any{"a"}}, mine}},
		map[string]any{
			"matchFields":      []any{map[string]any{"key": "metadata.name", "operator": "In", "values": []any{"node-1"}}},
			"matchExpressions": []any{mine},
		},
	}
	var have any = o["DaemonSet nkp-ovs"]
	for _, key := range strings.Split("spec template spec affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms", " ") {
		have = have.(map[string]any)[key]
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("terms %v, want %v", have, want)
	}
}

// A value that cannot work is refused with an error that names it and, where its name does not say it, what to write instead.
func TestBadValues(t *testing.T) {
	for values, want := range map[string]string{
		"":                                                        "apiServer.host: is missing; nkp cannot reach the API server through the Service that it serves itself. Set it to",
		"apiServer: null":                                         "apiServer: must be a map",
		"apiServer: 192.0.2.10":                                   "apiServer: must be a map",
		"dataPlanes: [ovn]":                                       `dataPlanes: "ovn" is not one of auto, ovs, ovs-pods-only and iptables`,
		"dataPlanes: ovs":                                         `dataPlanes: must be a list, as [a, b] in a file or --set 'dataPlanes={a,b}'; it is "ovs"`,
		"dataPlanes: []":                                          "dataPlanes: without any, and with windows.enabled false, no node would be served",
		"dataPlanes: [ovs, ovs]":                                  "dataPlanes: each makes a DaemonSet",
		"dataPlane: ovs":                                          "dataPlane",
		"dataPlanes: [auto, ovs]":                                 "dataPlanes: auto serves all Linux nodes",
		"dataPlanes: [ovs, ovs-pods-only]":                        "dataPlanes: ovs and ovs-pods-only serve the same nodes",
		"{kubeadm: true, config: x}":                              "kubeadm: nkp reads one configuration",
		"{kubeadm: true, clusterCIDR: 10.0.0.0/8}":                "clusterCIDR: with kubeadm nkp reads it from the KubeProxyConfiguration",
		"{config: x, clusterCIDR: 10.0.0.0/8}":                    "clusterCIDR: with config nkp reads it from the KubeProxyConfiguration",
		"clusterCIDR: 10.244.0.0":                                 `clusterCIDR: "10.244.0.0" is not an address range`,
		"{dataPlanes: [iptables], ovs: {bridge: br0}}":            "ovs: no Open vSwitch node is served",
		"ovs: {uplinkPort: eth 1}":                                "ovs.uplinkPort",
		"{windows: {enabled: true}, config: x}":                   "windows: nodes with Windows do not read config; set windows.extraArgs",
		"{windows: {enabled: true}, kubeadm: true}":               "windows: nodes with Windows do not read kubeadm's ConfigMap",
		"{apiServer: {host: a, external: true}}":                  "apiServer.external: says that nkp finds the API server without",
		"image: {tag: latest}":                                    "image.tag",
		"image: {pullPolicy: Sometimes}":                          "image.pullPolicy",
		"image: {pullSecrets: mine}":                              "image.pullSecrets: must be a list",
		"apiServer: {port: 70000}":                                "apiServer.port",
		"apiServer: {host: 'https://192.0.2.10'}":                 "apiServer.host",
		"extraArgs: --v=4":                                        `extraArgs: must be a list, as [a, b] in a file or --set 'extraArgs={a,b}'; it is "--v=4"`,
		"extraArgs: [mode=ovs]":                                   `extraArgs: "mode=ovs" is not an argument of nkp run; write each as one string`,
		"extraArgs: ['--v 4']":                                    `extraArgs: "--v 4" is not an argument`,
		"extraArgs: [4]":                                          "extraArgs: 4 is not an argument",
		"extraArgs: [--mode=ovs]":                                 "extraArgs: the chart writes --mode itself, from dataPlanes",
		"windows: {extraArgs: --v=4}":                             "windows.extraArgs: must be a list",
		"maxUnavailable: 0":                                       "maxUnavailable",
		"resources: null":                                         "resources: null takes the default away; leave it out for the default, or write {} for none",
		"tolerations: null":                                       "tolerations: null takes the default away; leave it out for the default, or write [] for none",
		"resources: big":                                          `resources: must be a map, as {key: value}; it is "big"`,
		"resources: {cpu: 1}":                                     "resources: cpu is not one of requests and limits",
		"resources: {requests: 1}":                                "resources.requests: must be a map, as {cpu: 100m, memory: 224Mi}; it is 1",
		"resources: {requests: {cpu: lots}}":                      `resources.requests.cpu: "lots" is not a quantity such as 250m, 0.5 or 224Mi`,
		"windows: {resources: {limits: {memory: 1GB}}}":           `windows.resources.limits.memory: "1GB" is not a quantity`,
		"sysctlsResources: {limits: {memory: -1}}":                "sysctlsResources.limits.memory: -1 is not a quantity",
		"env: {GOGC: 50}":                                         "env: must be a list",
		"env: [GOGC=50]":                                          "env: must be a list of variables",
		"env: [{name: NODE_NAME, value: x}]":                      "env: the chart sets NODE_NAME itself",
		"nodeSelector: {ovs: true}":                               "nodeSelector: the value of ovs must be a string; quote true",
		"podLabels: {v: 1}":                                       "podLabels: the value of v must be a string; quote 1",
		"affinity: soft":                                          "affinity: must be a map",
		"prometheus: {podMonitor: {interval: often}}":             "prometheus.podMonitor.interval",
		"prometheus: {podMonitor: {enabled: true}}":               "prometheus.podMonitor: Prometheus cannot reach",
		"{dataPlanes: [], prometheus: {rules: {labels: {a: 1}}}}": "prometheus.rules.labels.a",
	} {
		v := parse(t, values)
		if _, set := v["apiServer"]; !set && !strings.HasPrefix(want, "apiServer") && v["kubeadm"] == nil {
			v["apiServer"] = map[string]any{"external": true}
		}
		if strings.HasPrefix(want, "windows: nodes with Windows do not read kubeadm") {
			v["apiServer"] = map[string]any{"host": "192.0.2.10"}
		}
		_, err := render(t, v)
		// The schema's errors write a path with dots or with slashes.
		if err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), strings.ReplaceAll(want, ".", "/")) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}

// The notes name the DaemonSets, the first commands and the way back, and what is still a placeholder.
func TestNotes(t *testing.T) {
	for values, want := range map[string][]string{
		"{apiServer: {host: 192.0.2.10}, dataPlanes: [ovs, iptables]}": {
			"of these DaemonSets' nodes: nkp-ovs, nkp-iptables.", "kubectl label node NODE nkp-proxy.github.io/data-plane=ovs", "a placeholder",
			"clusterCIDR is empty", "kubectl -n kube-system exec daemonset/nkp-ovs -- /nkp status", "rollout status daemonset/nkp-iptables",
			"helm test nkp -n kube-system", "To undo: helm uninstall nkp -n kube-system",
		},
		"{apiServer: {host: 192.0.2.10}, clusterCIDR: 10.0.0.0/8}":                  {"exec daemonset/nkp -- nkp status"},
		"{apiServer: {host: 192.0.2.10}, dataPlanes: [], windows: {enabled: true}}": {"rollout status daemonset/nkp-windows"},
	} {
		rendered, err := render(t, parse(t, values))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(rendered.notes, w) {
				t.Errorf("%s: no %q in\n%s", values, w, rendered.notes)
			}
		}
	}
	rendered, err := render(t, parse(t, everything))
	if err != nil {
		t.Fatal(err)
	}
	old, err := renderOn(t, "v1.30.1", parse(t, everything))
	if err != nil || !strings.Contains(old.notes, "Kubernetes v1.30.1 is older than what nkp is tested with") {
		t.Errorf("%v: %s", err, old.notes)
	}
	if strings.Contains(rendered.notes, "older") || strings.Contains(rendered.notes, "placeholder") || strings.Contains(rendered.notes, "clusterCIDR is empty") {
		t.Error(rendered.notes)
	}
}

// The chart's copies are equal to the files that they are of. They are copies because Helm warns of symbolic links.
func TestFiles(t *testing.T) {
	for name, of := range map[string]string{
		"rbac.yaml":         "../kubernetes/rbac/rbac.yaml",
		"metrics-rbac.yaml": "../kubernetes/components/metrics/rbac.yaml",
		"rules.yaml":        "../prometheus/rules.yaml",
	} {
		have, want := must(os.ReadFile(filepath.Join("nkp/files", name))), must(os.ReadFile(of))
		if string(have) != string(want) {
			t.Errorf("nkp/files/%s differs: make docs copies %s", name, of)
		}
	}
}
