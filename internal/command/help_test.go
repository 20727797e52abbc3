package command

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/wait"
)

// --help of every command is wrapped, except its examples and single words, and lists each flag once, in a group.
func TestHelp(t *testing.T) {
	for _, cmd := range Commands() {
		if cmd.Hidden {
			continue
		}
		out, _, status := say(cmd.Name(), "--help")
		if status != exitOK || !strings.Contains(out, "\nUsage:\n  nkp "+cmd.Name()) || !strings.Contains(out, "\nExamples:\n") {
			t.Errorf("nkp %s --help: %d\n%s", cmd.Name(), status, out)
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > fallbackColumns && !strings.HasPrefix(line, "  nkp ") && len(strings.Fields(line)) > 5 {
				t.Errorf("nkp %s --help: a line of %d columns: %s", cmd.Name(), len(line), line)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if n := strings.Count(out, " --"+f.Name+" "); !f.Hidden && f.Deprecated == "" && n == 0 {
				t.Errorf("nkp %s --help does not list --%s", cmd.Name(), f.Name)
			}
			if g := f.Annotations[groupKey]; cmd.Name() == "run" && !f.Hidden && (len(g) != 1 || !slices.Contains(groups, g[0])) {
				t.Errorf("--%s of run is in groups %v", f.Name, g)
			}
		})
	}
	out, _, _ := say("--help")
	for _, g := range commandGroups {
		if !strings.Contains(out, "\n"+g.title+":\n") {
			t.Errorf("nkp --help has no group %s:\n%s", g.title, out)
		}
	}
}

// Paragraphs are wrapped each by itself; what is indented stays.
func TestWrapped(t *testing.T) {
	const text = "one two three\nfour:\n  a    item that is\n       long\nfive\n\nsix\nseven"
	const want = "one two\nthree four:\n  a    item that is\n       long\nfive\n\nsix seven"
	if got := wrapped(text, 12); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// The shell completes values, and names from the running agent. An agent that does not answer prints nothing, and does not keep
// the shell for good.
func TestCompletion(t *testing.T) {
	hangs := filepath.Join(t.TempDir(), "hangs.sock")
	l, err := net.Listen("unix", hangs)
	must(t, err)
	defer l.Close()
	socket := fakeAgent(t)
	for _, x := range []struct{ args, want string }{
		{"run --mode |", "auto ovs iptables nftables windows"},
		{"--mode |", "auto ovs iptables nftables windows"},
		{"trace --protocol |", "tcp udp sctp"},
		{"services -o |", "text wide json yaml"},
		{"plan --output |", "text ofctl iptables nft hcn json yaml"},
		{"services --socket " + socket + " |", "default/web kube-system/dns"},
		{"services --socket " + socket + " kube|", "kube-system/dns"},
		{"services --socket " + socket + " default/web |", ""},
		{"services --socket " + socket + " --name |", "dns web"},
		{"services --socket " + socket + " -n |", "default kube-system"},
		{"flows --socket " + socket + " kube|", "kube-system/dns"},
		{"trace --socket " + socket + " --from pod|", "pod/default/web-1"},
		{"trace --socket " + socket + " --to svc/d|", "svc/default/web:80"},
		{"trace --socket " + socket + " --to |", "svc/default/web:80 svc/kube-system/dns:dns"},
		{"trace --socket " + serveService(t, "1web") + " --to svc/default/1|", "svc/default/1web:80"},
		{"services --socket /nonexistent |", ""},
		{"services --socket " + hangs + " |", ""},
	} {
		words := strings.Split(strings.TrimSuffix(x.args, "|"), " ")
		wait.NoError(t, "completion", func() error { // an agent that was too slow once is asked again
			out, errOut, status := say(append([]string{"__complete"}, words...)...)
			values, _, _ := strings.Cut(out, ":4\n")
			if got := strings.Join(strings.Fields(values), " "); status != exitOK || got != x.want || strings.Contains(errOut, "nkp:") {
				return fmt.Errorf("nkp %s: %d, %q, %q; want %q", x.args, status, out, errOut, x.want)
			}
			return nil
		})
	}
}

// serveService answers as an agent that serves one Service does, and returns its socket.
func serveService(t *testing.T, name string) string {
	s := info(name, nil)
	s.Frontends = []api.FrontendInfo{{Type: "ClusterIP", Address: "10.96.0.1", Port: 80}}
	return serveAgent(t, map[string]http.HandlerFunc{"/v1/services": func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(listOf(time.Now(), s))
	}})
}

// Names of Services that begin with a digit (KEP-5311) are accepted in manifests, flags and arguments, and by kubectl's plugin.
func TestRelaxedNames(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "web.yaml")
	must(t, os.WriteFile(manifest, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"1web","namespace":"default"},
		"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`), 0o600))
	socket := serveService(t, "1web")
	for _, x := range []struct {
		args, want string
		status     int
	}{
		{"plan --manifests " + manifest + " -o json", `"name": "1web"`, exitOK},
		{"plan --manifests " + manifest + " -o ofctl", "10.96.0.1", exitOK},
		{"plan --manifests " + manifest + " -o nft", "10.96.0.1", exitOK},
		{"plan --manifests " + manifest + " -o iptables", "default/1web", exitOK},
		{"plan --manifests " + manifest + " -o json --skip-services default/1web", `"services": []`, exitOK},
		{"trace --manifests " + manifest + " --from 10.0.0.5 --to svc/default/1web", "default/1web", exitOK},
		{"trace --manifests " + manifest + " --from 10.0.0.5 --to default/1web:80", "default/1web", exitOK},
		{"services --socket " + socket + " 1web", "default/1web", exitOK},
		{"services --socket " + socket + " default/1web", "default/1web", exitOK},
	} {
		out, errOut, status := say(strings.Fields(x.args)...)
		if status != x.status || !strings.Contains(out, x.want) {
			t.Errorf("nkp %s: %d, want %d and %q in\n%s%s", x.args, status, x.status, x.want, out, errOut)
		}
	}
}
