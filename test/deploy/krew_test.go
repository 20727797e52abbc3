//go:build linux

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/krew/pkg/constants"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

// The manifest of kubectl's plugin is one that krew accepts. Its archives are in the release, with their checksums, and hold a
// program that is the plugin by its name.
func TestKrew(t *testing.T) {
	text, err := os.ReadFile(distFile(t, "nkp-krew.yaml"))
	must(t, err)
	var plugin index.Plugin
	must(t, yaml.UnmarshalStrict(text, &plugin))
	spec := plugin.Spec
	if plugin.APIVersion != constants.CurrentAPIVersion || plugin.Kind != constants.PluginKind || plugin.Name != "nkp" ||
		spec.ShortDescription == "" || len(spec.ShortDescription) > 80 || spec.Description == "" || strings.Contains(string(text), "@VERSION@") {
		t.Errorf("krew's manifest: %s", text)
	}
	found := 0
	for _, p := range spec.Platforms {
		name := p.URI[strings.LastIndex(p.URI, "/")+1:]
		labels := p.Selector.MatchLabels
		if want := "kubectl-nkp-" + labels["os"] + "-" + labels["arch"] + ".tar.gz"; name != want || !strings.Contains(p.URI, "/"+spec.Version+"/") {
			t.Errorf("the archive of %v is %s, want %s", labels, p.URI, want)
		}
		dir, err := distDir()
		must(t, err)
		archive := filepath.Join(dir, name)
		if _, err := os.Stat(archive); os.IsNotExist(err) {
			if p.Sha256 != "@SHA256:"+name+"@" {
				t.Errorf("%s is not in the release and has the checksum %s", name, p.Sha256)
			}
			continue // a release for another architecture
		}
		found++
		if sum, _, _ := strings.Cut(mustRun(t, "sha256sum", archive), " "); sum != p.Sha256 || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(sum) {
			t.Errorf("%s has the checksum %s, the manifest %s", name, sum, p.Sha256)
		}
		if files := strings.Fields(mustRun(t, "tar", "-tzf", archive)); !slices.Equal(files, []string{p.Bin, "third-party-licenses.txt", "LICENSE"}) {
			t.Errorf("%s has %q, want %s and the licenses", name, files, p.Bin)
		}
		if labels["os"] == runtime.GOOS && labels["arch"] == runtime.GOARCH {
			unpacked := t.TempDir()
			mustRun(t, "tar", "-xzf", archive, "-C", unpacked)
			if out := mustRun(t, filepath.Join(unpacked, p.Bin), "status", "--help"); !strings.Contains(out, "kubectl nkp status [flags]") {
				t.Errorf("%s is not the plugin: %s", p.Bin, out)
			}
		}
	}
	if found == 0 {
		t.Error("no archive of the manifest is in the release")
	}
}
