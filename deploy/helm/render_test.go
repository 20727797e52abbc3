package helm

import (
	"bytes"
	"log"
	"log/slog"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	common4 "helm.sh/helm/v4/pkg/chart/common"
	util4 "helm.sh/helm/v4/pkg/chart/common/util"
	loader4 "helm.sh/helm/v4/pkg/chart/loader"
	engine4 "helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// chartRender is what helm install would make of the chart.
type chartRender struct {
	objects objects
	hooks   objects // of helm test
	notes   string
}

// render renders the chart with values, as helm install of Helm 3 and of Helm 4 would: both make the same, without a warning. An
// error is Helm 3's, and Helm 4's differs at most in what surrounds the sentence.
func render(t *testing.T, values map[string]any) (chartRender, error) {
	t.Helper()
	return renderOn(t, "v1.37.2", values)
}

// renderOn is render for a cluster of a version of Kubernetes.
func renderOn(t *testing.T, version string, values map[string]any) (chartRender, error) {
	t.Helper()
	warnings := warnings(t)
	files, err := render3(version, values)
	files4, err4 := render4(version, values)
	if (err == nil) != (err4 == nil) {
		t.Fatalf("Helm 3: %v; Helm 4: %v", err, err4)
	}
	if text := warnings(); text != "" {
		t.Errorf("Helm warns: %s", text)
	}
	if err != nil {
		return chartRender{}, err
	}
	if !maps.Equal(files, files4) {
		t.Errorf("Helm 4 makes other objects than Helm 3 of %v", values)
	}

	out := chartRender{objects: objects{}, hooks: objects{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Base(name) == "NOTES.txt" {
			out.notes = files[name]
			continue
		}
		for _, doc := range regexp.MustCompile(`(?m)^---$`).Split(files[name], -1) {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, doc)
			}
			switch {
			case len(object) == 0:
			case strings.Contains(doc, "helm.sh/hook"):
				out.hooks.add(t, object)
			default:
				out.objects.add(t, object)
			}
		}
	}
	return out, nil
}

func render3(version string, values map[string]any) (map[string]string, error) {
	c, err := loader.Load("nkp")
	if err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: "nkp", Namespace: "kube-system", IsInstall: true}
	on, err := chartutil.ParseKubeVersion(version)
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, values, options, &chartutil.Capabilities{KubeVersion: *on})
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

func render4(version string, values map[string]any) (map[string]string, error) {
	c, err := loader4.Load("nkp")
	if err != nil {
		return nil, err
	}
	options := common4.ReleaseOptions{Name: "nkp", Namespace: "kube-system", IsInstall: true}
	on, err := common4.ParseKubeVersion(version)
	if err != nil {
		return nil, err
	}
	all, err := util4.ToRenderValues(c, values, options, &common4.Capabilities{KubeVersion: *on})
	if err != nil {
		return nil, err
	}
	return engine4.Render(c, all)
}

// warnings collects what Helm logs from now on. The function that it returns ends that, and returns the lines.
func warnings(t *testing.T) func() string {
	t.Helper()
	var text bytes.Buffer
	former := slog.Default()
	log.SetOutput(&text)
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})))
	return func() string {
		slog.SetDefault(former)
		log.SetOutput(os.Stderr)
		return text.String()
	}
}
