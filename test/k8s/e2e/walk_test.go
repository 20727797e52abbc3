package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	walkPage = "../../../docs/operate/walk.md"

	// before is what the walk upgrades from: a commit, until there is a release before.
	before = "8f1fa50a66d2eda78fc2079053f0bbb27bbb0daf"
)

var updateWalk = flag.Bool("update-walk", false, "rewrite the outputs in docs/operate/walk.md")

// walkPrograms builds helm, kubectl and the nkp of before.
var walkPrograms = sync.OnceValues(func() (programs map[string]string, err error) {
	programs = map[string]string{}
	build := func(name, env, folder, pkg string) {
		if err == nil {
			programs[name], err = testbed.Build(env, folder, pkg)
		}
	}
	build("helm", "NKP_HELM", "../../../deploy/helm", "helm.sh/helm/v3/cmd/helm")
	build("kubectl", "NKP_KUBECTL", "../../conformance/k8s", "k8s.io/kubernetes/cmd/kubectl")
	return programs, err
})

// TestWalk does what docs/operate/walk.md says, from nothing to nkp and back, on two nodes with a switch each: every command of the
// page runs as it is there, and prints what is there. The API server, helm, kubectl, the DaemonSet controller and nkp are the real
// ones; machines take the place of kubelet and container runtime. Meanwhile no connection from pod to Service fails, from the first
// installation until the last cleanup.
func TestWalk(t *testing.T) {
	text, err := os.ReadFile(walkPage)
	must(t, err)
	w := newWalk(t)
	var page strings.Builder
	w.follow(string(text), &page)
	if *updateWalk && !t.Failed() {
		must(t, os.WriteFile(walkPage, []byte(page.String()), 0o644))
	}
}

// walk is a stranger at work: a shell on the first node, in a directory with the repository as nkp, and as before the release before.
type walk struct {
	*cluster
	dir, bin string
	machines map[string]*machine
	client   *testbed.Host
	load     *usage // nil while nkp is not installed
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	programs, err := walkPrograms()
	must(t, err)
	w := &walk{dir: t.TempDir(), bin: t.TempDir(), machines: map[string]*machine{}}
	old := w.layOut(t, programs)

	spec := func(name, node, remote, pods, remotePods string) nodeSpec {
		return nodeSpec{name, testbed.Options{Standalone: true, IPv4: testbed.Addressing{
			Node: netip.MustParseAddr(node), Remote: netip.MustParseAddr(remote),
			Pods: netip.MustParsePrefix(pods), RemotePods: netip.MustParsePrefix(remotePods),
		}}}
	}
	w.cluster = newCluster(t, layout{
		nodes: []nodeSpec{
			spec("node-1", "192.168.3.11", "192.168.3.13", "10.244.1.0/24", "10.244.3.0/24"),
			spec("node-2", "192.168.3.12", "192.168.3.14", "10.244.2.0/24", "10.244.4.0/24"),
		},
		install: true,
	})
	for _, n := range w.nodes {
		label := []byte(`{"metadata": {"labels": {"kubernetes.io/os": "linux"}}}`) // kubelet's
		_, err := w.cluster.client.CoreV1().Nodes().Patch(w.ctx, n.name, types.StrategicMergePatchType, label, metav1.PatchOptions{})
		must(t, err)
		w.machines[n.name] = n.startMachine(map[string]string{"before": old})
	}

	client, err := w.nodes[0].AddPod(testbed.PodSpec{Name: "client", NoIPv6: true})
	must(t, err)
	w.client = client.Host
	for i, n := range w.nodes {
		web, err := n.AddPod(testbed.PodSpec{Name: fmt.Sprint("web-", i+1), NoIPv6: true})
		must(t, err)
		w.createPodOn(n.name, web, map[string]string{"app": "web"}, targetPort)
	}
	w.createService("web", "web", 10)
	return w
}

// layOut makes the stranger's directory, and returns the path of the nkp of before.
func (w *walk) layOut(t *testing.T, programs map[string]string) (old string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(w.dir, "before"), 0o755))
	must(t, os.Mkdir(filepath.Join(w.dir, "nkp"), 0o755))
	for name, path := range programs {
		must(t, os.Symlink(path, filepath.Join(w.bin, name)))
	}
	script := `cp -r "$1/deploy" "$2/nkp/"; git -C "$1" archive "$3" | tar -x -C "$2/before"
		"$4/helm" package --destination "$2/before" "$2/before/deploy/helm/nkp"`
	out, err := exec.Command("sh", "-ec", script, "sh", root, w.dir, before, w.bin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	old, err = testbed.Build("NKP_BEFORE", filepath.Join(w.dir, "before"), "github.com/nkp-proxy/nkp", "-ldflags", static, "-o", filepath.Join(w.bin, "nkp-before"))
	must(t, err)
	if os.Getenv("NKP_BEFORE") == "" {
		old = filepath.Join(w.bin, "nkp-before")
	}
	return old
}

// addressFlags have the API server say that it is at the first node's address, which its certificate has.
func (c *cluster) addressFlags() []string {
	certs := filepath.Join(c.dir, "certs")
	must(c.t, os.MkdirAll(certs, 0o700))
	crt, key, err := cert.GenerateSelfSignedCertKey("kubernetes", []net.IP{c.Node.IP4.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv4(40, 0, 0, 1)}, nil)
	must(c.t, errors.Join(err, os.WriteFile(filepath.Join(certs, "apiserver.crt"), crt, 0o600), os.WriteFile(filepath.Join(certs, "apiserver.key"), key, 0o600)))
	return []string{"--advertise-address=" + c.Node.IP4.String(), "--endpoint-reconciler-type=lease"}
}

// follow runs the commands of the page's blocks, and writes the page with what they print to out.
func (w *walk) follow(page string, out *strings.Builder) {
	w.t.Helper()
	const fence = "```console\n"
	parts := strings.Split(page, fence)
	out.WriteString(parts[0])
	steps := 0
	for _, part := range parts[1:] {
		block, rest, closed := strings.Cut(part, "```\n")
		if !closed {
			w.t.Fatal("a block of the page does not end")
		}
		out.WriteString(fence)
		for _, s := range walkSteps(block) {
			have := w.step(s)
			steps++
			if walkNormal(have) != walkNormal(s.output) && !*updateWalk {
				w.t.Errorf("%s prints (-update-walk writes it)\n%s\nand on the page\n%s", s.line, have, s.output)
			}
			if walkNormal(have) == walkNormal(s.output) {
				have = s.output // numbers that differ each time stay
			}
			out.WriteString(s.line + firstWait.ReplaceAllString(have, "$1"))
		}
		out.WriteString("```\n" + rest)
	}
	if steps < 15 {
		w.t.Errorf("the page has only %d commands", steps)
	}
	if w.load != nil {
		w.t.Error("at the end of the page nkp is still installed")
	}
}

// walkStep is a command of the page with its prompt, and what it prints.
type walkStep struct{ line, machine, command, output string }

// firstWait are lines of kubectl rollout status that say that it waits, of which the page has one.
var firstWait = regexp.MustCompile(`(?m)(^Waiting for daemon set .*\n)(?:^Waiting for daemon set .*\n)+`)

var prompt = regexp.MustCompile(`^(?:(node-[0-9])# |\$ )`)

func walkSteps(block string) (steps []walkStep) {
	for line := range strings.Lines(block) {
		at := prompt.FindStringSubmatch(line)
		continued := len(steps) > 0 && strings.HasSuffix(steps[len(steps)-1].line, "\\\n") && steps[len(steps)-1].output == ""
		switch {
		case continued:
			steps[len(steps)-1].line += line
			steps[len(steps)-1].command += line
		case at != nil:
			steps = append(steps, walkStep{line: line, machine: at[1], command: line[len(at[0]):]})
		case len(steps) > 0:
			steps[len(steps)-1].output += line
		}
	}
	return steps
}

// step runs a command, which succeeds. After an installation connections work, and are watched until a cleanup.
func (w *walk) step(s walkStep) string {
	w.t.Helper()
	command := strings.TrimSpace(s.command)
	w.t.Logf("%s", strings.TrimSpace(s.line))
	if s.machine != "" {
		if strings.HasPrefix(command, "nkp cleanup") && w.load != nil {
			w.load.end()
			w.load = nil
		}
		out, err := w.machines[s.machine].asRoot(strings.Fields(command)[1:]...)
		if err != nil {
			w.t.Fatalf("%s: %v: %s", s.line, err, out)
		}
		return out
	}
	script := fmt.Sprintf("exec 2>&1; export PATH=%s:$PATH KUBECONFIG=%s HOME=%s; cd %s; %s", w.bin, w.adminConfig(), w.dir, w.dir, command)
	ctx, cancel := context.WithTimeout(w.ctx, 2*wait.Limit)
	defer cancel()
	out, _, status := harness.Run(ctx, w.t, w.Node, "bash", "-ec", script)
	if status != 0 {
		w.t.Errorf("%s ends with %d: %s", s.line, status, out)
	}
	switch {
	case strings.Contains(command, "rollout status") && w.load == nil:
		w.eventually("web is served", func() error {
			_, err := w.client.Ask(w.ctx, "tcp", web4)
			return err
		})
		w.load = w.use(w.client, web4)
	case w.load != nil:
		w.load.check(command)
	}
	return out
}

// walkNormal replaces what differs each time.
func walkNormal(text string) string {
	for _, r := range [][2]string{
		{`(?m)^Waiting for daemon set .*\n`, ""}, // as many as it takes
		{`(?m)^((?:LAST DEPLOYED|Last Started|Last Completed): +).*$`, "${1}TIME"},
		{`\b[0-9]+(\.[0-9]+)? ?(ms|µs|s|min|MB)\b`, "N $2"},
		{`nkp-ovs-[a-z0-9]{5}\b`, "nkp-ovs-xxxxx"},
		{`nkp-apiserver-[a-z0-9]{10}\b`, "nkp-apiserver-xxxxxxxxxx"},
		{`\b[0-9]+ (flows|groups?|meters?|pod addresses)\b`, "N $1"}, // kubectl exec chooses either node
		{` deleted from [a-z-]+ namespace\b`, " deleted"},            // kubectl 1.33 and later
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return text
}

// The page is read as it is meant: prompts, lines that go on, outputs.
func TestWalkSteps(t *testing.T) {
	steps := walkSteps("$ one \\\n  two\nout\nmore\nnode-2# nkp cleanup\n$ three\n")
	want := []walkStep{
		{"$ one \\\n  two\n", "", "one \\\n  two\n", "out\nmore\n"},
		{"node-2# nkp cleanup\n", "node-2", "nkp cleanup\n", ""},
		{"$ three\n", "", "three\n", ""},
	}
	if fmt.Sprintf("%q", steps) != fmt.Sprintf("%q", want) {
		t.Errorf("%q, want %q", steps, want)
	}
	if a, b := walkNormal("in step after 12 ms, 145 flows"), walkNormal("in step after 1.5 ms, 99 flows"); a != b {
		t.Errorf("%q, %q", a, b)
	}
}
