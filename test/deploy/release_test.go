//go:build linux

package deploy

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A release is whole: checksums fit, the binary is static, the SBOM names the modules that are in it.
func TestRelease(t *testing.T) {
	dir, err := distDir()
	must(t, err)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must(t, err)
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if name := e.Name(); name != "SHA256SUMS" && !strings.Contains(string(sums), "  "+name+"\n") {
			t.Errorf("%s has no checksum", name)
		}
	}
	mustRun(t, "sh", "-c", `cd "$0" && sha256sum --quiet --strict -c SHA256SUMS`, dir)

	bin := distFile(t, "nkp-linux-amd64")
	f, err := elf.Open(bin)
	must(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is not static: it has %v", bin, p.Type)
		}
	}
	if out := mustRun(t, bin, "version"); !strings.HasPrefix(out, "nkp ") || strings.Contains(out, "unknown") {
		t.Errorf("nkp version: %s", out)
	}

	text, err := os.ReadFile(distFile(t, "nkp-linux-amd64.cdx.json"))
	must(t, err)
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	must(t, json.Unmarshal(text, &bom))
	licenses, err := os.ReadFile(distFile(t, "third-party-licenses.txt"))
	must(t, err)
	inBinary := 0
	for line := range strings.Lines(mustRun(t, "go", "version", "-m", bin)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "dep" && words[0] != "=>" {
			continue
		}
		inBinary++
		if !strings.Contains(string(text), words[2]) {
			t.Errorf("the SBOM does not have %s %s", words[1], words[2])
		}
		if words[0] == "dep" && !strings.Contains(string(licenses), "\n"+words[1]+"@"+words[2]+", ") {
			t.Errorf("third-party-licenses.txt does not have %s %s", words[1], words[2])
		}
	}
	if bom.BOMFormat != "CycloneDX" || len(bom.Components) < 30 || inBinary < 30 {
		t.Errorf("%s with %d components, the binary has %d modules", bom.BOMFormat, len(bom.Components), inBinary)
	}
}

// The overlays of a release name the images of its archives, and no placeholder if the release has a registry.
func TestOverlaysNameTheImages(t *testing.T) {
	root := t.TempDir()
	mustRun(t, "tar", "-C", root, "-xf", distFile(t, "nkp-kubernetes.tar.gz"))
	var registry string
	for _, name := range []string{"nkp", "nkp-iptables", "nkp-windows"} {
		index := mustRun(t, "tar", "-xOf", distFile(t, name+"-image.tar"), "index.json")
		m := regexp.MustCompile(`"(([^"]*)/` + name + `:[^":]*)"`).FindStringSubmatch(index)
		if m == nil {
			t.Fatalf("%s has no name: %s", name, index)
		}
		registry = m[2]
		used := mustRun(t, "grep", "-rho", "image: .*/"+name+":.*", filepath.Join(root, "nkp/deploy/kubernetes"))
		for line := range strings.Lines(used) {
			if !regexp.MustCompile(`^image: ` + regexp.QuoteMeta(m[1]) + `( # a placeholder.*)?\n$`).MatchString(line) {
				t.Errorf("%s: the archive has %q, an overlay %q", name, m[1], line)
			}
		}
	}
	if out, _ := exec.Command("grep", "-rE", `placeholder|registry\.example`, root).Output(); registry != "registry.example.com" && len(out) > 0 {
		t.Errorf("placeholders are left: %s", out)
	}
	if _, err := os.Stat(filepath.Join(root, "nkp/deploy/kubernetes/auto/kustomization.yaml")); err != nil {
		t.Error(err)
	}
}

// Both packages have the same files but for what each distribution wants of its own, and keep what the user has configured.
func TestPackages(t *testing.T) {
	requireProgram(t, "rpm", "dpkg-deb")
	want := []string{"/etc/default/nkp", "/etc/nkp", "/usr/bin/kubectl-nkp", "/usr/bin/kubectl_complete-nkp", "/usr/bin/nkp", "/usr/lib/systemd/system/nkp.service", "/usr/share/bash-completion/completions/nkp",
		"/usr/share/doc/nkp/examples/config.yaml", "/usr/share/doc/nkp/third-party-licenses.txt.gz", "/usr/share/fish/vendor_completions.d/nkp.fish",
		"/usr/share/man/man8/kubectl-nkp.8.gz", "/usr/share/man/man8/kubectl_complete-nkp.8.gz", "/usr/share/man/man8/nkp-run.8.gz",
		"/usr/share/man/man8/nkp.8.gz"}
	onlyRPM := []string{"/usr/share/licenses/nkp/LICENSE", "/usr/share/zsh/site-functions/_nkp"}
	onlyDeb := []string{"/usr/share/doc/nkp/changelog.gz", "/usr/share/doc/nkp/copyright", "/usr/share/zsh/vendor-completions/_nkp"}
	otherPage := func(name string) bool { // of another command
		return strings.HasPrefix(name, "/usr/share/man/man8/nkp-") && !slices.Contains(want, name)
	}
	rpm := []string{"rpm", "--dbpath", t.TempDir(), "-qp"}
	file := distFile(t, "nkp-*.x86_64.rpm")
	got := slices.DeleteFunc(strings.Fields(mustRun(t, append(slices.Clone(rpm), "-l", file)...)), otherPage)
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(slices.Concat(want, onlyRPM)))) {
		t.Errorf("the .rpm has %q", got)
	}
	if got := mustRun(t, append(slices.Clone(rpm), "--configfiles", file)...); strings.TrimSpace(got) != "/etc/default/nkp" {
		t.Errorf("the .rpm's configuration files are %q", got)
	}
	scripts := mustRun(t, append(slices.Clone(rpm), "--scripts", file)...)
	for _, s := range []string{"postinstall", "preuninstall", "postuninstall"} {
		if !strings.Contains(scripts, s+" scriptlet") {
			t.Errorf("the .rpm has no %s script", s)
		}
	}
	root := t.TempDir()
	mustRun(t, "dpkg-deb", "-x", debPackage(t), root)
	for _, name := range slices.Concat(want, onlyDeb) {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("the .deb: %v", err)
		}
	}
	control := t.TempDir()
	mustRun(t, "dpkg-deb", "-e", debPackage(t), control)
	if got, _ := os.ReadFile(filepath.Join(control, "conffiles")); strings.TrimSpace(string(got)) != "/etc/default/nkp" {
		t.Errorf("the .deb's conffiles are %q", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		mustRun(t, "sh", "-n", filepath.Join(control, script))
	}
}

// Debian's checks find neither error nor warning in the .deb but those that its lintian-overrides names, with the reason.
func TestLintian(t *testing.T) {
	requireProgram(t, "lintian")
	mustRun(t, "lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", debPackage(t))
}
