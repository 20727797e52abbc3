package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// unpack returns the files of an archive by their names.
func unpack(t testing.TB, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		text, err := io.ReadAll(r)
		must(t, err)
		if h.Mode != 0o600 || int64(len(text)) != h.Size {
			t.Errorf("%s: mode %o, size %d", h.Name, h.Mode, h.Size)
		}
		files[path.Base(h.Name)] = string(text)
	}
}

// withBundle is a fake agent that has all parts of a bundle but pods.
func withBundle(t *testing.T, log string) string {
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	return serveAgent(t, map[string]http.HandlerFunc{
		"GET /v1/report":   answer(api.Report{Version: "v1", Configuration: map[string]any{"a": 1}, Conntrack: 7, Database: "Bridge br-int\n", Log: log}),
		"GET /v1/status":   answer(api.Status{Node: "node-1"}),
		"GET /v1/services": answer(api.ServiceList{Node: "node-1"}),
		"GET /v1/diff":     func(http.ResponseWriter, *http.Request) {},
		"GET /v1/flows":    answer(api.FlowList{Objects: []dataplane.Object{{Plane: "ovs", Text: "flow add x"}}}),
	})
}

// A bundle has a file for each part, says what is missing and what was cut, is for its owner only, and replaces no file.
func TestBundle(t *testing.T) {
	socket := withBundle(t, strings.Repeat("one line of the log\n", maxPart/10))
	t.Chdir(t.TempDir())
	out, errOut, status := say("bundle", "--socket", socket)
	name, size, _ := strings.Cut(strings.TrimSpace(out), ": ")
	if status != exitOK || !regexp.MustCompile(`^nkp-bundle-node-1-\d{8}T\d{6}Z\.tar\.gz$`).MatchString(name) || !strings.HasSuffix(size, " kB") ||
		errOut != "nkp: 1 part could not be read: contents.txt in the archive says why\n" {
		t.Fatalf("%d, %s%s", status, out, errOut)
	}
	info, err := os.Stat(name)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", info.Mode())
	}
	archive, err := os.ReadFile(name)
	must(t, err)
	files := unpack(t, archive)
	for file, says := range map[string]string{
		"version.txt": "nkp v1", "configuration.json": `"a": 1`, "conntrack.json": "7", "database.txt": "br-int", "log.txt": "one line", "status.json": `"node-1"`,
		"services.json": `"node-1"`, "diff.txt": "", "flows.txt": "flow add x",
		"contents.txt": fmt.Sprintf("log.txt: %d bytes, cut after %d\n", maxPart/10*20, maxPart/20*20),
	} {
		if text, ok := files[file]; !ok || !strings.Contains(text, says) {
			t.Errorf("%s: %v, %.300q has no %q", file, ok, text, says)
		}
	}
	if _, ok := files["pods.json"]; ok || !strings.Contains(files["contents.txt"], "pods.json: not read: ") {
		t.Errorf("a part that failed: %v, %s", ok, files["contents.txt"])
	}

	before := fmt.Sprint(name, " exists already")
	if _, errOut, status := say("bundle", "-f", name, "--socket", socket); status != exitFailure || !strings.Contains(errOut, before) {
		t.Errorf("over a file: %d, %s", status, errOut)
	}
	if again, _ := os.ReadFile(name); !bytes.Equal(again, archive) {
		t.Error("the file was overwritten")
	}
	if out, _, status := say("bundle", "-f", "-", "--socket", socket); status != exitOK || len(unpack(t, []byte(out))) != len(files) {
		t.Errorf("to standard output: %d", status)
	}
	out, errOut, status = say("bundle", "-f", "-", "--socket", filepath.Join(t.TempDir(), "none"))
	if files := unpack(t, []byte(out)); status != exitOK || len(files) != 1 || !strings.Contains(files["contents.txt"], "status.json: not read: no nkp answers") {
		t.Errorf("without an agent: %d, %v, %s", status, files, errOut)
	}
}

// The parts together are bounded.
func TestBundleIsBounded(t *testing.T) {
	b := &bundle{}
	for i := range 12 {
		b.parts = append(b.parts, &part{name: fmt.Sprint(i), text: strings.Repeat("line\n", maxPart/4)})
	}
	archive, _, err := b.archive("x", time.Unix(0, 0))
	must(t, err)
	sum := 0
	for _, text := range unpack(t, archive) {
		sum += len(text)
	}
	if sum > maxBundle+maxPart || sum < maxBundle/2 {
		t.Errorf("%d bytes", sum)
	}
}

// What is no credential stays readable.
func TestRedactLeaves(t *testing.T) {
	for _, s := range []string{
		"flow add cookie=0x6e6b700100000001,table=20,priority=100,tcp,nw_dst=40.0.0.1,tp_dst=80,actions=group:7",
		`time=2026-01-01T00:00:00Z level=INFO msg="serving Services" mode=ovs node=node-1`,
		`  "metricsAuthorization": false,`, `"name": "vault-tokens",`, "tcp:10.0.0.1:6640", `"revision": "` + strings.Repeat("0123456789abcdef", 4) + `"`, "https://10.0.0.1:6443/api",
	} {
		if got := redact(s); got != s {
			t.Errorf("%s\nbecomes %s", s, got)
		}
	}
}

// FuzzBundle puts a secret into everything that nkp reads: kubeconfig, flags, annotations of Services, external_ids of the database,
// log lines, and errors that quote them. It is not in the archive.
func FuzzBundle(f *testing.F) {
	for _, s := range []string{"s3cr3t-token-abcdef0123", "hunter2hunter2", "a b\tc'd", `quote"and\slash`, "päßwörd", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", strings.Repeat("Ab3+", 40)} {
		for form := range uint8(13) {
			f.Add(s, form)
		}
	}
	f.Fuzz(func(t *testing.T, secret string, form uint8) {
		secret = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0xfffd || r > 0xffff {
				return -1
			}
			return r
		}, strings.TrimSpace(secret))
		if len(secret) < 8 || strings.Contains("[redacted] kubeconfig password Authorization contents.txt", secret) {
			return // it may stand there as a word
		}
		token := base64.RawURLEncoding.EncodeToString([]byte(secret)) // credentials in URLs and headers have no blanks
		quoted, _ := json.Marshal(secret)
		key := "-----BEGIN PRIVATE KEY-----\n" + token + "\n-----END PRIVATE KEY-----\n"

		// The configuration in force, of real flags.
		s := newSettings()
		run := &cobra.Command{}
		s.runFlags(run.Flags())
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, os.WriteFile(kubeconfig, []byte("users: [{user: {token: "+string(quoted)+"}}]"), 0o600))
		must(t, run.ParseFlags([]string{"--kubeconfig", kubeconfig, "--master", "https://admin:" + token + "@10.0.0.1:6443"}))
		must(t, s.combine(run.Flags(), nil))

		// What others may have said of it: a warning about a Service, an error of the API server, a log.
		said := []string{
			"Authorization: Bearer " + token, "authorization=Basic " + token, `password: ` + secret, `{"password":` + string(quoted) + `}`, key,
			"client-key-data: " + token, "Get \"https://u:" + token + "@h/api\": refused", `map[Authorization:[Bearer ` + token + `]]`, "--bearer-token " + token,
			`metadata.annotations[example.com/api-key]: "` + token + `"`, `token = ` + secret, "certificate-authority-data: " + token, "AWS_SECRET_ACCESS_KEY=" + token,
		}
		saying := said[int(form)%len(said)]
		recent := &agent.RecentLog{}
		log := slog.New(slog.NewTextHandler(recent, nil))
		log.Warn(saying, "token", secret)
		log.Warn("request", "header", http.Header{"Authorization": {"Bearer " + token}})

		ids := map[string]string{"password": secret, secret: token}
		b := &bundle{node: "node-1"}
		add := func(name string, v any) {
			p := &part{name: name}
			b.parts = append(b.parts, p)
			p.set(v, nil)
		}
		add("configuration.json", s.configz())
		add("database.txt", agent.DescribeSwitch(ovsdb.Switch{Bridge: "br-int", ExternalIDs: ids, SystemIDs: ids, Ports: []ovsdb.Port{{Name: "pod"}}}))
		add("log.txt", recent.String())
		add("status.json", api.Status{Warnings: []string{saying}})
		add("diff.txt", saying)
		b.parts = append(b.parts, &part{name: "services.json", err: errors.New(saying)})

		archive, unread, err := b.archive("x", time.Unix(0, 0))
		must(t, err)
		files := unpack(t, archive)
		if unread != 1 || len(files) != 6 {
			t.Fatalf("%d files, %d unread", len(files), unread)
		}
		for name, text := range files {
			for _, s := range []string{secret, token, strings.Trim(string(quoted), `"`)} {
				if strings.Contains(text, s) {
					t.Errorf("%s has %q, of %q: %s", name, s, saying, text)
				}
			}
		}
	})
}
