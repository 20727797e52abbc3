package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/k8s"
)

// FuzzDecode feeds anything to the decoder and what it makes of it to a tracker. Nothing may panic, and no message may be long.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"../testdata/cases/*.yaml", "../testdata/semantics/*.txt", "testdata/bad/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal("no seeds: ", pattern)
		}
		for _, name := range files {
			seed, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			seed, _, _ = bytes.Cut(seed, []byte("=== want\n"))
			f.Add(seed)
			if json, err := yaml.YAMLToJSON(seed); err == nil {
				f.Add(json)
			}
		}
	}
	f.Add([]byte(bigManifest(2, 2)))
	for _, list := range jsonStreams {
		f.Add([]byte(list.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data, err := text(data)
		if err != nil {
			return
		}
		one := file{path: "f.yaml"}
		one.parse(data)
		for _, w := range append(one.errors, one.warnings...) {
			if len(w.String()) > 1200 {
				t.Errorf("message of %d bytes: %.200s", len(w.String()), w)
			}
		}
		tr := k8s.NewTracker(k8s.Options{NodeName: "n1"})
		for _, e := range one.objects {
			tr.Apply([]k8s.Change{{Op: k8s.Upsert, Ref: e.ref, Object: e.object, Origin: e.origin}})
		}
		m, _ := tr.Flush()
		m.View(nil)
	})
}

// TestLikeKubernetes decodes the valid manifests of testdata the way that Kubernetes clients do, by way of JSON, and compares.
func TestLikeKubernetes(t *testing.T) {
	files, err := filepath.Glob("../testdata/semantics/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ = bytes.Cut(text, []byte("=== want\n"))
		for _, doc := range documents(text) {
			for _, got := range decode(name, doc.text).objects {
				want := got.ref.Kind.New()
				if err := yaml.UnmarshalStrict(doc.text, want); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				setDefaults(want)
				if !reflect.DeepEqual(got.object, want) {
					t.Errorf("%s: %s:\n%+v\nwant\n%+v", name, got.ref, got.object, want)
				}
				compared++
			}
		}
	}
	if compared < 50 {
		t.Errorf("compared only %d objects", compared)
	}
}
