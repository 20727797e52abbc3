//go:build linux

package packets

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// nkp flows counts the packets that went through a Service's flows and groups, and no other's; a list can be cut; nkp bundle
// archives a real node with all its parts.
func TestFlowsAndBundle(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	web, other := service("web", "40.0.0.1"), service("other", "40.0.0.2")
	c.begin(web, other, slice(web, 8080, at(c.pods[1].IP4), at(c.pods[2].IP4)), slice(other, 8080, at(c.pods[1].IP4), at(c.pods[2].IP4)))
	const connections = 4
	for range connections {
		a, err := c.pods[0].Ask(c.ctx, "tcp", "40.0.0.1:80")
		must(t, err)
		if a.Pod != c.pods[1].Name && a.Pod != c.pods[2].Name {
			t.Errorf("answered by %s", a.Pod)
		}
	}
	c.awaitCounters(t, map[string]uint64{"web": connections})

	counted := func(name string) (flows, groups uint64) {
		out, errOut, status := c.nkp("flows", "default/"+name, "-o", "json", "--socket", c.socket())
		if status != 0 {
			t.Fatalf("flows ends with %d: %s", status, errOut)
		}
		var list api.FlowList
		must(t, json.Unmarshal([]byte(out), &list))
		for _, o := range list.Objects {
			switch {
			case strings.HasPrefix(o.Text, "group add "):
				groups = max(groups, *o.Packets)
			case strings.HasPrefix(o.Text, "flow add ") && strings.Contains(o.Text, "nw_dst=40.0.0."):
				flows = max(flows, *o.Packets)
			}
		}
		return flows, groups
	}
	if flows, groups := counted("web"); flows < connections || groups != connections {
		t.Errorf("%d connections: a flow counts %d packets, a group %d", connections, flows, groups)
	}
	if flows, groups := counted("other"); flows != 0 || groups != 0 {
		t.Errorf("a Service without connections: a flow counts %d packets, a group %d", flows, groups)
	}
	whole, err := api.NewCaller(c.socket()).Flows(c.ctx, "default", "web", 0)
	must(t, err)
	cut, err := api.NewCaller(c.socket()).Flows(c.ctx, "default", "web", 3)
	must(t, err)
	if len(cut.Objects) != 3 || cut.More != len(whole.Objects)-3 || whole.More != 0 {
		t.Errorf("of %d objects are %d listed, and %d more", len(whole.Objects), len(cut.Objects), cut.More)
	}

	file := filepath.Join(c.dir, "bundle.tar.gz")
	if out, errOut, status := c.nkp("bundle", "-f", file, "--socket", c.socket()); status != 0 || errOut != "" || !strings.Contains(out, file) {
		t.Fatalf("bundle ends with %d: %s%s", status, out, errOut)
	}
	for name, says := range map[string]string{
		"contents.txt": "status.json: ", "version.txt": "Linux", "configuration.json": c.Bridge, "conntrack.json": "zones", "database.txt": c.pods[0].Name,
		"log.txt": "serving Services", "status.json": nodeName, "services.json": "40.0.0.2", "pods.json": c.pods[0].Name, "diff.txt": "", "flows.txt": "nw_dst=40.0.0.1",
	} {
		if text, ok := unpack(t, file)[name]; !ok || !strings.Contains(text, says) {
			t.Errorf("%s: %v, without %q: %.500s", name, ok, says, text)
		}
	}
}

// unpack returns the files of a bundle by their names.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		text, err := io.ReadAll(archive)
		must(t, err)
		files[path.Base(h.Name)] = string(text)
	}
}
