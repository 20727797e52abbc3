package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// kubernetesDir holds the manifests that ship.
const kubernetesDir = "../../../deploy/kubernetes"

// overlay is what users apply.
type overlay struct {
	name         string
	capabilities []v1.Capability // of the container that runs; nil: it is not a Linux one
	components   []string        // that are tried on it
}

var overlays = []overlay{
	{"ovs", []v1.Capability{"NET_ADMIN", "NET_RAW"}, []string{"kubeadm", "config", "metrics"}},
	{"examples/ovs", []v1.Capability{"NET_ADMIN", "NET_RAW"}, nil},
	{"ovs-pods-only", []v1.Capability{}, []string{"config"}},
	{"iptables", []v1.Capability{"NET_ADMIN", "NET_RAW"}, []string{"kubeadm", "metrics"}},
	{"auto", []v1.Capability{"NET_ADMIN", "NET_RAW"}, []string{"kubeadm", "config"}},
	{"windows", nil, []string{"metrics"}},
}

// build renders a folder of kustomize's, as JSON objects.
func build(t *testing.T, dir string) [][]byte {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	must(t, err)
	var objects [][]byte
	for _, r := range resources.Resources() {
		text, err := r.MarshalJSON()
		must(t, err)
		objects = append(objects, text)
	}
	return objects
}

// withComponent makes an overlay of an overlay and a component.
func withComponent(t *testing.T, overlay, component string) string {
	t.Helper()
	// Kustomize takes relative paths only.
	dir, err := os.MkdirTemp(kubernetesDir, ".test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := fmt.Sprintf("resources: [../%s]\ncomponents: [../components/%s]\n", overlay, component)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	return dir
}

// The API server takes every manifest as it is, unknown fields refused; each has what a node agent needs, and no
// privilege too many.
func TestManifests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{})
	entries, err := os.ReadDir(kubernetesDir)
	must(t, err)
	for _, e := range entries { // none is forgotten in the list
		if name := e.Name(); e.IsDir() && !strings.HasPrefix(name, ".") && !slices.Contains([]string{"rbac", "base", "components", "examples"}, name) {
			if !slices.ContainsFunc(overlays, func(o overlay) bool { return o.name == name }) {
				t.Errorf("deploy/kubernetes/%s is not tested", name)
			}
		}
	}
	for _, o := range overlays {
		t.Run(o.name, func(t *testing.T) {
			dirs := []string{filepath.Join(kubernetesDir, o.name)}
			for _, component := range o.components {
				dirs = append(dirs, withComponent(t, o.name, component))
			}
			for i, dir := range dirs {
				objects := build(t, dir)
				for _, object := range objects {
					if err := c.tryDryRun(object); err != nil {
						t.Errorf("%v\n%s", err, object)
					}
				}
				pod := daemonSet(t, objects).Spec.Template.Spec
				checkPod(t, pod, o.capabilities)
				if i == 0 {
					c.checkFlags(t, pod.Containers[0].Args)
				}
			}
		})
	}
	// Without strictness the checks above would pass whatever is written.
	if err := c.tryDryRun([]byte(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"x","namespace":"kube-system"},"tokens":[]}`)); err == nil {
		t.Error("the API server takes a field that does not exist")
	}
}

// Each overlay mounts the node's files that it needs, and no directory above one: a socket of the container runtime
// in a mounted directory makes its container root on the node, since a read-only mount does not keep it from
// connecting. route_localnet is nkp's to set, behind its guard and only for NodePorts at 127.0.0.1: where nkp serves
// what the node sends to itself, the container may write this one file of /proc, and no init container does.
func TestHostPaths(t *testing.T) {
	t.Parallel()
	const (
		agent    = "/run/nkp DirectoryOrCreate rw at /run/nkp"
		ovs      = "/var/run/openvswitch Directory ro at /var/run/openvswitch"
		anyOVS   = "/var/run/openvswitch DirectoryOrCreate ro at /var/run/openvswitch" // or none
		lock     = "/run/xtables.lock FileOrCreate rw at /run/xtables.lock"
		modules  = "/lib/modules  ro at /lib/modules"
		file     = "/proc/sys/net/ipv4/conf/all/route_localnet"
		localnet = file + " File rw at /host" + file
	)
	paths := map[string][]string{
		"ovs":           {localnet, agent, ovs},
		"examples/ovs":  {localnet, agent, ovs},
		"ovs-pods-only": {agent, ovs},
		"iptables":      {modules, localnet, agent, lock},
		"auto":          {modules, localnet, agent, lock, anyOVS},
		"windows":       nil,
	}
	for _, o := range overlays {
		want, known := paths[o.name]
		if !known {
			t.Errorf("%s: which of the node's files it needs is not said here", o.name)
		}
		pod := daemonSet(t, build(t, filepath.Join(kubernetesDir, o.name))).Spec.Template.Spec
		if have := hostPaths(pod); !slices.Equal(have, want) {
			t.Errorf("%s mounts of the node %q, want %q", o.name, have, want)
		}
		for _, k := range pod.InitContainers {
			text := strings.Join(append(k.Command, k.Args...), " ")
			if strings.Contains(text, "route_localnet") {
				t.Errorf("%s: init container %s sets route_localnet: %s", o.name, k.Name, text)
			}
		}
	}
}

// hostPaths are the node's files in the containers of a pod, sorted: path, type, access, and where each is mounted.
func hostPaths(pod v1.PodSpec) (have []string) {
	for _, k := range append(pod.InitContainers, pod.Containers...) {
		for _, m := range k.VolumeMounts {
			at := slices.IndexFunc(pod.Volumes, func(v v1.Volume) bool { return v.Name == m.Name })
			if at < 0 || pod.Volumes[at].HostPath == nil {
				continue // the API server refuses a mount without volume
			}
			v := pod.Volumes[at]
			kind, access := "", "rw"
			if v.HostPath.Type != nil {
				kind = string(*v.HostPath.Type)
			}
			if m.ReadOnly {
				access = "ro"
			}
			have = append(have, fmt.Sprintf("%s %s %s at %s", v.HostPath.Path, kind, access, m.MountPath))
		}
	}
	slices.Sort(have)
	return have
}

// daemonSet returns the one DaemonSet among objects.
func daemonSet(t *testing.T, objects [][]byte) (set appsv1.DaemonSet) {
	t.Helper()
	sets := 0
	for _, object := range objects {
		var o appsv1.DaemonSet
		if must(t, json.Unmarshal(object, &o)); o.Kind == "DaemonSet" {
			set = o
			sets++
		}
	}
	if sets != 1 {
		t.Fatalf("%d DaemonSets", sets)
	}
	return set
}

// tryDryRun has the API server take an object without keeping it, as
// kubectl apply --server-side --dry-run=server --validate=strict does.
func (c *cluster) tryDryRun(object []byte) error {
	var meta metav1.PartialObjectMetadata
	if err := json.Unmarshal(object, &meta); err != nil {
		return err
	}
	_, mapping, err := scheme.Codecs.UniversalDeserializer().Decode(object, nil, nil)
	if err != nil {
		return err
	}
	prefix := "/apis/" + mapping.Group + "/" + mapping.Version
	if mapping.Group == "" {
		prefix = "/api/" + mapping.Version
	}
	if meta.Namespace != "" {
		prefix += "/namespaces/" + meta.Namespace
	}
	path := prefix + "/" + strings.ToLower(meta.Kind) + "s/" + meta.Name
	text, err := yaml.JSONToYAML(object)
	if err != nil {
		return err
	}
	err = c.client.CoreV1().RESTClient().Patch("application/apply-patch+yaml").AbsPath(path).
		Param("fieldManager", "e2e").Param("dryRun", "All").Param("fieldValidation", "Strict").Body(text).Do(c.ctx).Error()
	if err != nil {
		return fmt.Errorf("%s %s: %w", meta.Kind, meta.Name, err)
	}
	return nil
}

// checkPod holds what every node agent has to be.
func checkPod(t *testing.T, pod v1.PodSpec, capabilities []v1.Capability) {
	t.Helper()
	k := pod.Containers[0]
	switch {
	case !pod.HostNetwork:
		t.Error("not in the host's network")
	case pod.PriorityClassName != "system-node-critical":
		t.Errorf("priority class %q", pod.PriorityClassName)
	case len(pod.Tolerations) != 1 || pod.Tolerations[0].Operator != v1.TolerationOpExists || pod.Tolerations[0].Key != "":
		t.Error("it does not tolerate every taint")
	case k.LivenessProbe == nil || k.LivenessProbe.HTTPGet.Path != "/livez" || k.ReadinessProbe == nil || k.ReadinessProbe.HTTPGet.Path != "/healthz":
		t.Error("probes are missing")
	case k.Resources.Requests.Memory().IsZero() || k.Resources.Requests.Cpu().IsZero():
		t.Error("no requests")
	}
	if capabilities == nil {
		if w := pod.SecurityContext.WindowsOptions; w == nil || !*w.HostProcess {
			t.Error("not a HostProcess container")
		}
		return
	}
	s := k.SecurityContext
	if s.Privileged != nil && *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem {
		t.Error("privileged, or with a root file system that it may write")
	}
	if !slices.Equal(s.Capabilities.Drop, []v1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, capabilities) {
		t.Errorf("capabilities are %+v, want all dropped but %v", s.Capabilities, capabilities)
	}
}

// checkFlags has nkp read the flags of a manifest; that the node's name is not known yet does not matter to it.
func (c *cluster) checkFlags(t *testing.T, args []string) {
	t.Helper()
	out, _ := c.nkp(append(slices.Clone(args), "--manifests", filepath.Join(c.dir, "none"))...)
	if !strings.Contains(out, "--manifests: ") || !strings.Contains(out, "no such file") {
		t.Errorf("nkp %v: %s", args, out)
	}
}

// With exactly the rights that ship nkp does all it has to, and nothing that it asks for is denied: the API server's
// audit log has it all.
func TestNothingIsDenied(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{audit: true})
	pods, err := c.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	client, web := pods[0], pods[1]
	c.createPod(web, "web")
	c.createService("web", "web", 10)
	c.createService("twin", "web", 11)
	c.startAgent()
	c.eventually("web is served", func() error { return c.answers(client.Host, web4, web) })
	c.deletePod(web)
	c.eventually("without pods it refuses", func() error { return c.fails(client.Host, web4, testbed.ErrRefused) })
	if out, status := c.diff(); status != 0 {
		t.Errorf("nkp diff ends with %d: %s", status, out)
	}
	user := "system:serviceaccount:kube-system:" + nkpAccount
	c.eventually("the audit log has what nkp asked for", func() error {
		seen, denied, err := readAudit(c.auditLog(), user)
		if err != nil {
			return err
		}
		if len(denied) > 0 {
			c.t.Fatalf("denied: %v", denied)
		}
		for _, want := range []string{"services", "endpointslices", "nodes", "servicecidrs", "events"} {
			if seen[want] == 0 {
				return fmt.Errorf("nkp has not asked for %s: %v", want, seen)
			}
		}
		c.t.Logf("requests that were answered, by resource: %v", seen)
		return nil
	})

	// The log would have told: what nkp may not ask for is in it.
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	must(t, err)
	cfg.Dial = c.Node.DialContext
	nkp, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	if _, err := nkp.CoreV1().Secrets("kube-system").List(c.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing Secrets with nkp's token: %v, want forbidden", err)
	}
	c.eventually("the audit log has what was denied", func() error {
		_, denied, err := readAudit(c.auditLog(), user)
		if err == nil && len(denied) != 1 {
			err = fmt.Errorf("denied: %v", denied)
		}
		return err
	})
}

// readAudit counts a user's requests by resource, and gives those that were denied.
func readAudit(file, user string) (seen map[string]int, denied []string, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errors.New("there is no audit log yet")
	} else if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	seen = map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the last line may be half there
		}
		if e.User.Username != user || e.ResponseStatus == nil {
			continue
		}
		switch e.ResponseStatus.Code {
		case http.StatusForbidden, http.StatusUnauthorized:
			denied = append(denied, e.Verb+" "+e.RequestURI)
		default:
			if e.ObjectRef != nil {
				seen[e.ObjectRef.Resource]++
			}
		}
	}
	return seen, denied, lines.Err()
}

// auditLog is the file of the API server's audit log, for a layout with audit.
func (c *cluster) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// auditFlags have the API server write down who asked for what.
func (c *cluster) auditFlags() []string {
	policy := &auditv1.Policy{
		TypeMeta: metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "Policy"},
		Rules:    []auditv1.PolicyRule{{Level: auditv1.LevelMetadata}},
	}
	file := filepath.Join(c.dir, "audit-policy.yaml")
	text, err := yaml.Marshal(runtime.Object(policy))
	must(c.t, err)
	must(c.t, os.WriteFile(file, text, 0o600))
	return []string{"--audit-policy-file=" + file, "--audit-log-path=" + c.auditLog(), "--audit-log-mode=blocking"}
}
