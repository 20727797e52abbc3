package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/plugins/content/local"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// makeImages builds all images around binaries that are texts, and returns their folder.
func makeImages(t *testing.T) string {
	t.Helper()
	dist := t.TempDir()
	for _, name := range []string{"nkp-linux-amd64", "nkp-linux-arm64", "nkp-windows-amd64.exe", "third-party-licenses.txt"} {
		must(t, os.WriteFile(filepath.Join(dist, name), []byte("this is "+name), 0o755))
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	cache := "../../bin/debs"
	if dir := os.Getenv("NKP_DEBS"); dir != "" {
		cache = dir
	}
	list, err := mirrors()
	must(t, err)
	must(t, build(release{version: "v0.1.0", registry: registry, dist: dist, archs: []string{"amd64", "arm64"}, packages: debian{cache, list}}))
	return dist
}

// index opens an archive as an OCI image layout, and returns the image index in it.
func index(t *testing.T, file string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("tar", "-C", dir, "-xf", file).CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	l, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	m, err := l.IndexManifest()
	must(t, err)
	if len(m.Manifests) != 1 {
		t.Fatalf("%s: %d entries in index.json", file, len(m.Manifests))
	}
	idx, err := l.ImageIndex(m.Manifests[0].Digest)
	must(t, err)
	return idx
}

// The archives are valid OCI image layouts with an image for each platform; each image starts the release's binary for it.
func TestImages(t *testing.T) {
	dist := makeImages(t)
	for name, binaries := range map[string]map[string]string{
		"nkp":          {"linux/amd64": "nkp-linux-amd64 /nkp", "linux/arm64": "nkp-linux-arm64 /nkp"},
		"nkp-iptables": {"linux/amd64": "nkp-linux-amd64 /usr/bin/nkp", "linux/arm64": "nkp-linux-arm64 /usr/bin/nkp"},
		"nkp-windows":  {"windows/amd64": "nkp-windows-amd64.exe nkp.exe"},
	} {
		idx := index(t, filepath.Join(dist, name+"-image.tar"))
		if err := validate.Index(idx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		m, err := idx.IndexManifest()
		must(t, err)
		have := map[string]string{}
		for _, d := range m.Manifests {
			img, err := idx.Image(d.Digest)
			must(t, err)
			config, err := img.ConfigFile()
			must(t, err)
			if got := config.OS + "/" + config.Architecture; d.Platform.String() != got {
				t.Errorf("%s: the index says %s, the image %s", name, d.Platform, got)
			}
			if len(config.Config.Entrypoint) != 1 || !slices.Equal(config.Config.Cmd, []string{"run"}) {
				t.Errorf("%s starts %q %q", name, config.Config.Entrypoint, config.Config.Cmd)
			}
			entry := config.Config.Entrypoint[0]
			inside := strings.TrimPrefix(entry, "/")
			if config.OS == "windows" {
				inside = "Files/" + inside
			}
			have[d.Platform.String()] = strings.TrimPrefix(string(content(t, img)[inside]), "this is ") + " " + entry
		}
		if !maps.Equal(have, binaries) {
			t.Errorf("%s starts %v, want %v", name, have, binaries)
		}
	}
}

// content returns the regular files of an image.
func content(t *testing.T, img v1.Image) map[string][]byte {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	all := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		text, err := io.ReadAll(tr)
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s is %d:%d's", h.Name, h.Uid, h.Gid)
		}
		all[strings.TrimSuffix(h.Name, "/")] = text
	}
}

// containerd's importer, which is behind ctr images import and K3s' folder of images, takes the archives under the names that
// the manifests in deploy/kubernetes have.
func TestContainerdImports(t *testing.T) {
	dist := makeImages(t)
	for _, name := range []string{"nkp", "nkp-iptables", "nkp-windows"} {
		store, err := local.NewStore(t.TempDir())
		must(t, err)
		f, err := os.Open(filepath.Join(dist, name+"-image.tar"))
		must(t, err)
		defer f.Close()
		desc, err := archive.ImportIndex(context.Background(), store, f)
		must(t, err)
		ra, err := store.ReaderAt(context.Background(), desc)
		must(t, err)
		text, err := io.ReadAll(io.NewSectionReader(ra, 0, ra.Size()))
		must(t, err)
		m, err := v1.ParseIndexManifest(bytes.NewReader(text))
		must(t, err)
		if len(m.Manifests) != 1 || m.Manifests[0].Annotations["io.containerd.image.name"] != registry+"/"+name+":v0.1.0" {
			t.Errorf("%s is imported as %+v", name, m.Manifests)
		}
	}
}

// The same input yields the same bytes.
func TestReproducible(t *testing.T) {
	one, two := makeImages(t), makeImages(t)
	files, err := filepath.Glob(one + "/*-image.tar")
	must(t, err)
	if len(files) != 3 {
		t.Fatalf("%d archives", len(files))
	}
	for _, f := range files {
		a, err := os.ReadFile(f)
		must(t, err)
		b, err := os.ReadFile(filepath.Join(two, filepath.Base(f)))
		must(t, err)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds", filepath.Base(f))
		}
	}
}

// A library that no package has is an error, not an image whose programs do not start.
func TestMissingLibrary(t *testing.T) {
	list, err := locked("amd64")
	must(t, err)
	for _, p := range list {
		if p.name != "libmnl0" {
			continue
		}
		d := debian{filepath.Join(t.TempDir(), "none"), nil}
		if _, err := d.fetch(p); err == nil || !strings.Contains(err.Error(), "libmnl0 "+p.version) {
			t.Errorf("without a mirror: %v", err)
		}
	}
	elf, err := os.ReadFile("/bin/sh") // any program that is linked with a library
	must(t, err)
	tree := files{"bin/program": {data: elf}}
	if err := link(tree, maps.Clone(tree)); err == nil || !strings.HasPrefix(err.Error(), "bin/program: no package has ") {
		t.Errorf("a program without its libraries: %v", err)
	}
}

// A package with another checksum than the pinned one is refused, wherever it comes from; the next mirror is asked.
func TestFetchChecksSums(t *testing.T) {
	good := []byte("the package")
	sum := sha256.Sum256(good)
	p := pinned{name: "web", version: "1", path: "pool/web_1_amd64.deb", sum: hex.EncodeToString(sum[:])}
	serve := func(text []byte) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/debian/"+p.path || text == nil {
				http.NotFound(w, r)
				return
			}
			w.Write(text)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/debian"
	}
	forged, gone, right := serve([]byte("another package")), serve(nil), serve(good)
	cache := t.TempDir()
	if _, err := (debian{cache, []string{forged, gone}}).fetch(p); err == nil || !strings.Contains(err.Error(), "SHA-256 is not") || !strings.Contains(err.Error(), "404") {
		t.Errorf("a forged package and a missing one: %v", err)
	}
	for _, mirrors := range [][]string{{forged, gone, right}, nil} { // the second time from the cache
		file, err := debian{cache, mirrors}.fetch(p)
		must(t, err)
		if text, _ := os.ReadFile(file); !bytes.Equal(text, good) {
			t.Errorf("fetched %q", text)
		}
	}
	must(t, os.WriteFile(filepath.Join(cache, "web_1_amd64.deb"), []byte("damaged"), 0o644))
	if _, err := (debian{cache, nil}).fetch(p); err == nil {
		t.Error("a damaged file of the cache is used")
	}
}

// packages.lock pins the same packages for each architecture, and a time of which snapshots exist.
func TestLock(t *testing.T) {
	names := map[string][]string{}
	for _, arch := range []string{"amd64", "arm64"} {
		list, err := locked(arch)
		must(t, err)
		for _, p := range list {
			names[arch] = append(names[arch], p.name)
		}
	}
	if !slices.Equal(names["amd64"], names["arm64"]) {
		t.Errorf("different packages: %v", names)
	}
	if _, err := time.Parse("20060102T150405Z", lockTime()); err != nil {
		t.Error(err)
	}
}

// Another program that knows registry files, hivex, reads the hives of the Windows base layer: a root key and nothing else.
func TestHives(t *testing.T) {
	base := windowsBase()
	if len(base) != 5 {
		t.Errorf("%d hives", len(base))
	}
	for name, f := range base {
		path := filepath.Join(t.TempDir(), filepath.Base(name))
		must(t, os.WriteFile(path, f.data, 0o644))
		out, err := exec.Command("hivexml", path).CombinedOutput()
		if err != nil {
			t.Fatalf("hivexml %s: %v: %s", name, err, out)
		}
		if text := string(out); strings.Count(text, "<node ") != 1 || !strings.Contains(text, `root="1"`) {
			t.Errorf("%s: %s", name, text)
		}
		// hivex does not look at checksums and security descriptors: regf's checksum is the XOR of the words before it.
		sum := uint32(0)
		for at := 0; at < 512; at += 4 {
			sum ^= uint32(f.data[at]) | uint32(f.data[at+1])<<8 | uint32(f.data[at+2])<<16 | uint32(f.data[at+3])<<24
		}
		if sum != 0 {
			t.Errorf("%s: checksum is wrong by %#x", name, sum)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
