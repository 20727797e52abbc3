package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A kubeconfig whose credentials come from a program is refused, and the program is not run.
func TestNoCredentialPrograms(t *testing.T) {
	dir := t.TempDir()
	proof, path := filepath.Join(dir, "ran"), filepath.Join(dir, "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
		"users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": ["` + proof + `"], "interactiveMode": "Never"}}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := NewSource(Options{Kubeconfig: path, NodeName: "n1"})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "exec: ") || !strings.Contains(err.Error(), "tokenFile") {
		t.Errorf("refused with %v", err)
	}
	if _, err := os.Stat(proof); err == nil {
		t.Error("the program ran")
	}
}
