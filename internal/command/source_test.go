package command

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// Exactly one source of Services must be set. A missing or contradictory source is an error of one line.
func TestSourceFlags(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	manifest, none := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "none")
	must(t, os.WriteFile(manifest, nil, 0o600))
	ini := filepath.Join(dir, "ncp.ini")
	must(t, os.WriteFile(ini, []byte("[k8s]\napiserver_host_ip = 127.0.0.1\nca_file = "+none+"\n"), 0o600))
	for _, tc := range []struct {
		args   string
		status int
		says   string
	}{
		{"plan --ncp-ini " + ini, exitFailure, "--ncp-ini: " + ini + ": [k8s]: "},
		{"run", exitUsage, "name the API server with --kubeconfig or --ncp-ini, or files with --manifests"},
		{"plan", exitUsage, "name the API server with --kubeconfig or --ncp-ini, or files with --manifests"},
		{"run --manifests " + manifest + " --kubeconfig " + none, exitUsage, "--manifests and --kubeconfig exclude each other"},
		{"plan --manifests " + manifest + " --kubeconfig " + none, exitUsage, "--manifests and --kubeconfig exclude each other"},
		{"diff --manifests " + manifest + " --kubeconfig " + none, exitUsage, "--manifests and --kubeconfig exclude each other"},
		{"run --manifests " + manifest + " --master http://127.0.0.1:1", exitUsage, "--manifests and --master exclude each other"},
		{"run --kubeconfig " + none, exitFailure, "kubeconfig " + none},
		{"run --manifests " + none, exitFailure, "--manifests: stat"},
		{"plan --kubeconfig " + none, exitFailure, "kubeconfig " + none},
		{"plan --master http://127.0.0.1:1", exitFailure, "API server http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"plan --master http://127.0.0.1:1 --service-proxy-name no!", exitFailure, "cannot be the value of label"},
		{"diff --config /nonexistent.yaml", exitDiffError, "nonexistent.yaml"},
		{"diff --socket " + none, exitDiffError, "without an agent, pass --kubeconfig or --manifests"},
	} {
		_, stderr, status := say(strings.Fields(tc.args)...)
		if status != tc.status || !strings.Contains(stderr, tc.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("nkp %s: status %d, %q", tc.args, status, stderr)
		}
	}
}

// In a pod no flag is needed. A missing service account is an error that names it.
func TestSourceInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	if _, stderr, status := say("plan"); status != exitFailure || !strings.Contains(stderr, "serviceaccount") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// plan --master lists each resource once. A missing Node is only a warning.
func TestPlanFromServer(t *testing.T) {
	lists := map[string]string{
		"/api/v1/services": `{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "web", "namespace": "default"},
			"spec": {"clusterIP": "40.0.0.1", "clusterIPs": ["40.0.0.1"], "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}]}}]}`,
		"/api/v1/nodes": `{"apiVersion": "v1", "kind": "NodeList", "items": []}`,
		"/apis/discovery.k8s.io/v1/endpointslices": `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": []}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := lists[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(body))
	}))
	defer srv.Close()
	stdout, stderr, status := say("plan", "-o", "json", "--master", srv.URL, "--hostname-override", "node-1")
	if status != exitOK || !strings.Contains(stdout, `"name": "web"`) {
		t.Errorf("status %d: %s", status, stdout)
	}
	if want := "nkp: warning: API server " + srv.URL + ": Node node-1: does not exist"; !strings.Contains(stderr, want) {
		t.Errorf("%q is not in %q", want, stderr)
	}
}

// Messages of client-go appear one level lower in nkp's log.
func TestKlog(t *testing.T) {
	var b bytes.Buffer
	redirectKlog(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo})))
	defer klog.ClearLogger()
	klog.InfoS("chatter")
	klog.ErrorS(nil, "trouble", "key", "value")
	if got := b.String(); strings.Contains(got, "chatter") || !strings.Contains(got, "level=WARN msg=trouble") || !strings.Contains(got, "key=value") {
		t.Error(got)
	}
}
