package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const kubernetes = "../kubernetes"

// objects are Kubernetes objects by "kind name".
type objects map[string]map[string]any

func (o objects) add(t *testing.T, object map[string]any) {
	t.Helper()
	meta := object["metadata"].(map[string]any)
	key := fmt.Sprint(object["kind"], " ", meta["name"])
	if o[key] != nil {
		t.Errorf("two objects %s", key)
	}
	o[key] = object
}

// overlay renders a folder of deploy/kubernetes as kubectl apply -k would.
func overlay(t *testing.T, dir string) objects {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for _, r := range resources.Resources() {
		object, err := r.Map()
		if err != nil {
			t.Fatal(err)
		}
		all.add(t, object)
	}
	return all
}

// mustRender renders the chart with values in YAML. Unless they say where the API server is, nkp finds it otherwise.
func mustRender(t *testing.T, values string) objects {
	t.Helper()
	v := parse(t, values)
	if v["apiServer"] == nil {
		v["apiServer"] = map[string]any{"external": true}
	}
	if v["kubeadm"] == true {
		delete(v, "apiServer")
	}
	rendered, err := render(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return rendered.objects
}

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	v := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// The chart makes the objects of each overlay, field by field, and of the overlay with each component.
func TestChartEqualsOverlays(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(kubernetes, "components/config/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	settings := "config: " + string(must(json.Marshal(string(config))))
	for _, k := range []struct {
		overlays, components []string
		values               string
	}{
		{[]string{"auto"}, nil, ""},
		{[]string{"ovs"}, nil, "dataPlanes: [ovs]"},
		{[]string{"ovs-pods-only"}, nil, "dataPlanes: [ovs-pods-only]"},
		{[]string{"iptables"}, nil, "dataPlanes: [iptables]"},
		{[]string{"windows"}, nil, "{dataPlanes: [], windows: {enabled: true}}"},
		{[]string{"ovs", "iptables", "windows"}, nil, "{dataPlanes: [ovs, iptables], windows: {enabled: true}}"},
		{[]string{"examples/ovs"}, nil, "{dataPlanes: [ovs], clusterCIDR: 10.244.0.0/16, ovs: {bridge: br-int, uplinkPort: eth1}, apiServer: {host: 192.0.2.10}}"},
		{[]string{"auto"}, []string{"kubeadm"}, "kubeadm: true"},
		{[]string{"ovs"}, []string{"kubeadm"}, "{dataPlanes: [ovs], kubeadm: true}"},
		{[]string{"ovs"}, []string{"config"}, "dataPlanes: [ovs]\n" + settings},
		{[]string{"iptables"}, []string{"metrics"}, "{dataPlanes: [iptables], metrics: {expose: true}}"},
		{[]string{"auto"}, []string{"config", "metrics"}, "metrics: {expose: true}\n" + settings},
	} {
		t.Run(strings.Join(append(k.overlays, k.components...), " "), func(t *testing.T) {
			want := objects{}
			for _, o := range k.overlays {
				maps.Copy(want, overlay(t, compose(t, o, k.components)))
			}
			compare(t, normal(t, mustRender(t, k.values)), normal(t, want))
		})
	}
}

// compose makes an overlay of an overlay and components.
func compose(t *testing.T, name string, components []string) string {
	t.Helper()
	text := fmt.Sprintf("resources: [../%s]\n", name)
	if len(components) > 0 {
		text += fmt.Sprintf("components: [../components/%s]\n", strings.Join(components, ", ../components/"))
	}
	return custom(t, text)
}

// custom returns a folder beside the overlays with a kustomization.yaml, because kustomize takes relative paths only.
func custom(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp(kubernetes, ".test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// normal removes what differs between kustomize and Helm by design: both roll a DaemonSet out when the settings change,
// kustomize by a hash in the ConfigMap's name, the chart by a checksum in an annotation.
func normal(t *testing.T, o objects) objects {
	t.Helper()
	text := string(must(json.Marshal(o)))
	text = regexp.MustCompile(`"(ConfigMap )?(nkp|nkp-apiserver)-[0-9bcdfghkmt]{10}"`).ReplaceAllString(text, `"$1$2"`)
	text = regexp.MustCompile(`"annotations":\{"checksum/settings":"[0-9a-f]{64}"\},`).ReplaceAllString(text, "")
	var out objects
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func compare(t *testing.T, have, want objects) {
	t.Helper()
	for key := range have {
		if want[key] == nil {
			t.Errorf("only the chart has %s", key)
		}
	}
	if len(want) == 0 {
		t.Error("the overlay has no objects")
	}
	for key, w := range want {
		h := have[key]
		if h == nil {
			t.Errorf("the chart lacks %s", key)
			continue
		}
		for _, d := range differences(key, h, w) {
			t.Error(d)
		}
	}
}

// differences lists the fields in which two objects differ; the order of lists counts but for volumes, their mounts and the
// environment, where Kubernetes gives it no meaning.
func differences(at string, have, want any) []string {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			break
		}
		var out []string
		keys := maps.Clone(w)
		maps.Copy(keys, h)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			out = append(out, differences(at+"."+k, h[k], w[k])...)
		}
		return out
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			break
		}
		if last := at[strings.LastIndexByte(at, '.')+1:]; last == "volumes" || last == "volumeMounts" || last == "add" || last == "ports" {
			h, w = byText(h), byText(w)
		}
		var out []string
		for i := range w {
			out = append(out, differences(fmt.Sprintf("%s[%d]", at, i), h[i], w[i])...)
		}
		return out
	}
	if reflect.DeepEqual(have, want) {
		return nil
	}
	return []string{fmt.Sprintf("%s: the chart has %v, the overlay %v", at, have, want)}
}

func byText(list []any) []any {
	return slices.SortedFunc(slices.Values(list), func(a, b any) int {
		return strings.Compare(string(must(json.Marshal(a))), string(must(json.Marshal(b))))
	})
}

// helm lint has nothing to say, with little set and with everything.
func TestLint(t *testing.T) {
	for _, values := range []string{"apiServer: {host: 192.0.2.10}", everything} {
		for _, m := range lint.AllWithKubeVersion("nkp", parse(t, values), "kube-system", nil).Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	}
}

// The rules of the PrometheusRule are those of deploy/prometheus/rules.yaml, and the PodMonitor scrapes a port that the pods
// have, with a token.
func TestMonitoring(t *testing.T) {
	o := mustRender(t, "{metrics: {expose: true}, prometheus: {podMonitor: {enabled: true, labels: {release: p}}, rules: {enabled: true, labels: {release: p}}}}")
	var want any
	text, err := os.ReadFile("../prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	rule := o["PrometheusRule nkp"]
	if rule == nil || !reflect.DeepEqual(rule["spec"], want) {
		t.Errorf("PrometheusRule: %v", rule)
	}
	monitor := o["PodMonitor nkp"]
	if monitor == nil {
		t.Fatal("no PodMonitor")
	}
	endpoint := string(must(json.Marshal(monitor["spec"])))
	for _, w := range []string{`"port":"metrics"`, `"scheme":"https"`, `bearer`, `"app.kubernetes.io/name":"nkp"`} {
		if !strings.Contains(strings.ToLower(endpoint), strings.ToLower(w)) {
			t.Errorf("the PodMonitor has no %s: %s", w, endpoint)
		}
	}
	pods := string(must(json.Marshal(o["DaemonSet nkp"])))
	for _, w := range []string{`"name":"metrics"`, "--metrics-authorization"} {
		if !strings.Contains(pods, w) {
			t.Errorf("the DaemonSet has no %s: %s", w, pods)
		}
	}
}

// Every manifest, the chart and the changelog name the same version, and no image is without one.
func TestVersions(t *testing.T) {
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^## ([0-9.]+)`).FindSubmatch(changelog)[1]
	c, err := loader.Load("nkp")
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != string(version) || c.AppVersion() != "v"+string(version) {
		t.Errorf("CHANGELOG.md is at %s, the chart at %s, its application at %s", version, c.Metadata.Version, c.AppVersion())
	}
	images := 0
	for _, o := range []string{"auto", "ovs", "ovs-pods-only", "iptables", "windows"} {
		text := string(must(json.Marshal(overlay(t, filepath.Join(kubernetes, o)))))
		for _, m := range regexp.MustCompile(`"image":"([^"]*)"`).FindAllStringSubmatch(text, -1) {
			images++
			if !strings.HasSuffix(m[1], ":v"+string(version)) {
				t.Errorf("%s: image %s is not at v%s", o, m[1], version)
			}
		}
	}
	if images < 5 {
		t.Errorf("%d images", images)
	}
}

// An overlay replaces the settings of the component config as the component's comment says, and a changed setting rolls the
// DaemonSet out. As it is, the component sets nothing.
func TestConfigIsReplaced(t *testing.T) {
	const dir = kubernetes + "/components/config/"
	text := string(must(os.ReadFile(dir + "kustomization.yaml")))
	var example strings.Builder
	for line := range strings.Lines(text) {
		if indented, ok := strings.CutPrefix(line, "#   "); ok {
			example.WriteString(strings.NewReplacer("nkp/deploy/kubernetes/components/", "../components/", "nkp/deploy/kubernetes/", "../").Replace(indented))
		}
	}
	if !strings.Contains(example.String(), "patches:") {
		t.Fatalf("no example in %s", text)
	}
	names := map[string]bool{}
	for _, overlayText := range []string{example.String(), strings.ReplaceAll(example.String(), "10.244.0.0/16", "10.11.0.0/16"), "resources: [../ovs]\ncomponents: [../components/config]\n"} {
		o := overlay(t, custom(t, overlayText))
		volumes := string(must(json.Marshal(o["DaemonSet nkp-ovs"])))
		for key, object := range o {
			name, ok := strings.CutPrefix(key, "ConfigMap ")
			if !ok {
				continue
			}
			names[name] = true
			if !strings.Contains(volumes, `"configMap":{"name":"`+name+`"}`) {
				t.Errorf("the DaemonSet does not mount %s: %s", name, volumes)
			}
			data := fmt.Sprint(object["data"])
			if mine := strings.Contains(overlayText, "patches:"); mine != strings.Contains(data, "\nclusterCIDR: 10.") {
				t.Errorf("with %s\nthe ConfigMap holds %s", overlayText, data)
			}
		}
	}
	if len(names) != 3 {
		t.Errorf("three settings are in %v", names)
	}
	var settings map[string]any
	if err := yaml.Unmarshal(must(os.ReadFile(dir+"config.yaml")), &settings); err != nil || len(settings) != 2 {
		t.Errorf("the component sets %v (%v), want apiVersion and kind only", settings, err)
	}
}

// Chart values have a line of the schema each, and the other way around: none is undocumented or unchecked.
func TestSchemaIsComplete(t *testing.T) {
	c, err := loader.Load("nkp")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	var check func(at string, values map[string]any, schema map[string]any)
	check = func(at string, values, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		for k := range properties {
			if _, ok := values[k]; !ok && at+k != "global" {
				t.Errorf("values.yaml does not document %s%s", at, k)
			}
		}
		for k, v := range values {
			p, ok := properties[k].(map[string]any)
			if !ok {
				t.Errorf("values.schema.json does not know %s%s", at, k)
				continue
			}
			if sub, ok := v.(map[string]any); ok && p["properties"] != nil {
				check(at+k+".", sub, p)
			}
		}
	}
	check("", c.Values, schema)
}

// must returns the value of a function that does not fail here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
