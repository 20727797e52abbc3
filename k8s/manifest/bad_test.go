package manifest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/bound"
	"github.com/nkp-proxy/nkp/test/wait"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestBadInput runs testdata/bad: manifests with mistakes, and after "=== want" every message and object that must come of them.
func TestBadInput(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := bytes.Cut(text, []byte("=== want\n"))
			if !ok {
				t.Fatal("no line === want")
			}
			name, manifest := "in.yaml", input
			if at := bytes.Index(input, []byte("#! file=in.json\n")); at >= 0 {
				name, manifest = "in.json", input[at+len("#! file=in.json\n"):]
			}
			got := loadText(t, name, manifest)
			if *update {
				if err := os.WriteFile(file, append(append(input, "=== want\n"...), got...), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// loadText loads a manifest and writes down what came of it.
func loadText(t *testing.T, name string, manifest []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, manifest, 0o644); err != nil {
		t.Fatal(err)
	}
	return described(path, name, Load(path))
}

// loaded loads manifests, and fails if that takes Limit: it grows faster than the text then.
func loaded(t *testing.T, path string) *Set {
	t.Helper()
	done := make(chan *Set, 1)
	go func() { done <- Load(path) }()
	return wait.Receive(t, "the load", done)
}

// described writes down what came of the manifests of a path, with the path as name.
func described(path, name string, m *Set) string {
	var b strings.Builder
	for _, w := range m.Errors {
		fmt.Fprintf(&b, "error: %s\n", w)
	}
	for _, w := range m.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, c := range m.Objects {
		fmt.Fprintf(&b, "%s (%s)\n", c.Ref, c.Origin)
	}
	return strings.ReplaceAll(b.String(), path, name)
}

// TestNoise loads files that are no manifests at all: one short message each, at once.
func TestNoise(t *testing.T) {
	binary := make([]byte, 5<<20)
	for i := range binary {
		binary[i] = byte(i*i>>3) | 1
	}
	zeroes := append([]byte("apiVersion: v1\n"), make([]byte, 5<<20)...)
	words := bytes.Repeat([]byte("lorem ipsum "), 5<<20/12)
	long := bytes.Repeat([]byte("x"), 5<<20)
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"binary", binary, "error: in.yaml: not UTF-8 text: bad byte at offset"},
		{"zeroes", zeroes, "error: in.yaml: not a text file: there is a zero byte at offset 15\n"},
		{"words", words, "error: in.yaml, document 1: expected a Kubernetes object, got \"lorem ipsum lorem ipsum lorem ipsum lorem ipsum \"...\n"},
		{"long", long, "error: in.yaml, document 1: expected a Kubernetes object, got \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"...\n"},
		{"long field", append([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1, ports: [{port: "), append(long, "}]}"...)...),
			"error: in.yaml, document 1: Service default/a: spec.ports[0].port: expected a whole number, got \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"...\n"},
		{"long key", append(append([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}], ? "), long...), " : 1}"...), ""},
		{"long name", append([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: "), append(long, "}"...)...), ""},
		{"long anchor", append([]byte("a: *"), long...), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "in.yaml")
			write(t, path, string(c.data))
			got := described(path, "in.yaml", loaded(t, path))
			if !strings.HasPrefix(got, c.want) || got == "" || len(got) > 1000 {
				t.Errorf("got %.300q (%d bytes), want %q", got, len(got), c.want)
			}
		})
	}
}

// TestManyErrors loads a file with more mistakes than anyone would read.
func TestManyErrors(t *testing.T) {
	got := strings.Split(loadText(t, "in.yaml", bytes.Repeat([]byte("---\nkind: Service\n"), 1500)), "\n")
	if n := len(got); n != 1002 || got[1000] != "error: in.yaml: and 500 more errors" {
		t.Errorf("%d lines, the last but one %q", n, got[n-2])
	}
}

// Of one object 20 errors are named, and the others counted.
func TestErrorsOfAnObject(t *testing.T) {
	bound.Check(t, "errors", 20, func(n int) []string {
		text := "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec:\n  ports:\n"
		for i := range n {
			text += fmt.Sprintf("  - {name: p%d, port: %d}\n", i, 70_000+i)
		}
		return strings.Split(strings.TrimSpace(loadText(t, "in.yaml", []byte(text))), "\n")
	})
}

// A key that is there twice is an error behind any number of unknown fields that are named, too.
func TestDuplicateBehindUnknownFields(t *testing.T) {
	text := `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},`
	for i := range maxPerObject {
		text += fmt.Sprintf(`"unknown%d":1,`, i)
	}
	text += `"spec":{"clusterIP":"10.96.0.1","clusterIP":"10.96.0.2","ports":[{"port":80}]}}`
	want := "error: in.json, document 1: Service default/web: spec.clusterIP: is there twice\n"
	if got := loadText(t, "in.json", []byte(text)); !strings.HasPrefix(got, want) {
		t.Errorf("got %s", got)
	}
}

// TestTooLarge lowers the limit rather than writing 256 MiB.
func TestTooLarge(t *testing.T) {
	defer func(n int64) { maxFileSize = n }(maxFileSize)
	maxFileSize = 1 << 20
	if got, want := loadText(t, "in.yaml", make([]byte, 1<<20+1)), "error: in.yaml: larger than 1 MiB: too large for a manifest\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEndlessFile checks that the size of a file counts by what is read, because a device or a pipe has none.
func TestEndlessFile(t *testing.T) {
	defer func(n int64) { maxFileSize = n }(maxFileSize)
	maxFileSize = 1 << 20
	if data, err := readFile("/dev/zero"); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
