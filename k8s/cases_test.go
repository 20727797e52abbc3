package k8s_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with testdata/<name>, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update rewrites it); got:\n%s", path, got)
	}
}

// plan returns the model of a manifest as `nkp plan -o json` does, and the tracker that has read it.
func plan(t *testing.T, path string, opts k8s.Options) (*k8s.Model, *k8s.Tracker) {
	t.Helper()
	m := manifest.Load(path)
	if err := m.Err(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	tr := k8s.NewTracker(opts)
	tr.Apply(m.Objects)
	model, _ := tr.Flush()
	return model, tr
}

// viewJSON returns a view with one frontend or service per line.
func viewJSON(t *testing.T, m *k8s.Model) []byte {
	t.Helper()
	text, err := json.MarshalIndent(m.View(nil), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

func TestCases(t *testing.T) {
	for _, c := range []struct{ file, node string }{
		{"guestbook", "haofan-test-1"},
		{"k3s-traefik", "k3s-1"},
		{"nsx-sample", "node-1"},
		{"whoami-windows", "winw1"},
	} {
		t.Run(c.file, func(t *testing.T) {
			m, _ := plan(t, "testdata/cases/"+c.file+".yaml", k8s.Options{NodeName: c.node})
			if len(m.Warnings) > 0 {
				t.Errorf("warnings: %v", m.Warnings)
			}
			golden(t, "cases/"+c.file+".json", viewJSON(t, m))
		})
	}
}
