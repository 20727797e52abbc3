//go:build linux

package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

// docs/configuration.md is what the code says.
func TestPageIsCurrent(t *testing.T) {
	const root = "../.."
	want, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, file)
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what the code says: make docs", file)
	}
}
