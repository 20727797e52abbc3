package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/k8s"
)

// FuzzDecode feeds anything to the decoder and what it makes of it to a tracker. Nothing may panic, no message may be long,
// and cutting Lists into items must not change what comes out.
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
	for _, list := range jsonLists {
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
		uncut := file{path: "f.yaml"}
		uncut.parsePieces(nil)
		results, _ := uncut.parsePieces(unsplit(split(data)))
		n := 0
		for _, list := range results {
			for _, p := range list {
				if p.object == nil {
					continue
				}
				n++
				if got := one.objects[p.ref].object; len(one.errors) == 0 && !reflect.DeepEqual(got, p.object) {
					t.Errorf("%s: %v when cut out, %v in its document", p.ref, got, p.object)
				}
			}
		}
		if len(one.errors) == 0 && n != len(one.objects) {
			t.Errorf("%d objects when cut, %d in whole documents", len(one.objects), n)
		}
		tr := k8s.NewTracker(k8s.Options{NodeName: "n1"})
		for ref, e := range one.objects {
			tr.Apply([]k8s.Change{{Op: k8s.Upsert, Ref: ref, Object: e.object, Origin: e.origin}})
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
		for _, p := range split(text) {
			results, _ := p.parse()
			for _, r := range results {
				var want k8s.Object
				switch r.ref.Kind {
				case k8s.KindService:
					want = &v1.Service{}
				case k8s.KindEndpointSlice:
					want = &discoveryv1.EndpointSlice{}
				default:
					continue
				}
				if err := yaml.UnmarshalStrict(p.raw, want); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				setDefaults(want)
				if !reflect.DeepEqual(r.object, want) {
					t.Errorf("%s: %s:\n%+v\nwant\n%+v", name, r.ref, r.object, want)
				}
				compared++
			}
		}
	}
	if compared < 50 {
		t.Errorf("compared only %d objects", compared)
	}
}
