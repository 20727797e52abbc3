package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// machine is a node that runs the pods of the namespace kube-system that the API server has for it, as its kubelet and container
// runtime would: with the arguments, environment, mounts and capabilities of the pod. It also binds pods to its node, which is the
// scheduler's work, and deletes those whose DaemonSet is gone, which is the garbage collector's.
type machine struct {
	*node
	dir      string                         // the node's files below /run/nkp
	sandbox  *testbed.Pod                   // the network of a pod that is not in the host's
	programs map[string]string              // nkp by the tag of its image; "" for any other
	pods     map[types.UID]*containers      // only of the loop
	mu       sync.Mutex                     // protects specs
	specs    map[string]map[string]specFile // by pod and container, for kubectl exec
	end      context.CancelFunc
	done     chan struct{}
}

type specFile struct {
	containerSpec
	host *testbed.Host
}

// containers are those of a pod that runs.
type containers struct {
	name     string
	programs map[string]*testbed.Program
	logs     map[string]*testbed.Output
}

// startMachine starts to run pods until the test ends.
func (n *node) startMachine(programs map[string]string) *machine {
	n.c.t.Helper()
	sandbox, err := n.AddPod(testbed.PodSpec{Name: "sandbox-" + n.name, NoIPv6: true})
	must(n.c.t, err)
	ctx, end := context.WithCancel(n.c.ctx)
	m := &machine{
		node: n, dir: n.c.t.TempDir(), sandbox: sandbox, programs: programs, pods: map[types.UID]*containers{},
		specs: map[string]map[string]specFile{}, end: end, done: make(chan struct{}),
	}
	m.serveExec()
	go m.loop(ctx) // ends with end
	n.c.t.Cleanup(func() {
		m.end()
		<-m.done
	})
	return m
}

func (m *machine) loop(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			m.c.t.Logf("%s: %v", m.name, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	for _, k := range m.pods {
		k.stop()
	}
}

// sync takes one step towards what the API server has.
func (m *machine) sync(ctx context.Context) error {
	pods := m.c.client.CoreV1().Pods("kube-system")
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.NodeName == "" && m.wants(p) {
			b := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: v1.ObjectReference{Kind: "Node", Name: m.name}}
			if err := pods.Bind(ctx, b, metav1.CreateOptions{}); err != nil && !apierrors.IsConflict(err) {
				return err
			}
			continue
		}
		if p.Spec.NodeName != m.name {
			continue
		}
		there[p.UID] = true
		if err := m.syncPod(ctx, p); err != nil {
			return fmt.Errorf("pod %s: %w", p.Name, err)
		}
	}
	for uid, k := range m.pods {
		if !there[uid] {
			k.stop()
			delete(m.pods, uid)
		}
	}
	return nil
}

// wants reports whether a pod is for this node: the DaemonSet's pods name it, others go to the cluster's first.
func (m *machine) wants(p *v1.Pod) bool {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				return f.Key == metav1.ObjectNameField && f.Values[0] == m.name
			}
		}
	}
	return m.node == m.c.nodes[0]
}

func (m *machine) syncPod(ctx context.Context, p *v1.Pod) error {
	pods := m.c.client.CoreV1().Pods(p.Namespace)
	for _, o := range p.OwnerReferences {
		_, err := m.c.client.AppsV1().DaemonSets(p.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && p.DeletionTimestamp == nil {
			return pods.Delete(ctx, p.Name, metav1.DeleteOptions{})
		}
	}
	k := m.pods[p.UID]
	if p.DeletionTimestamp != nil {
		if k != nil {
			k.stop()
			delete(m.pods, p.UID)
		}
		now := int64(0)
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
	if k == nil {
		if p.Status.Phase != v1.PodPending {
			return nil // it has ended
		}
		var err error
		if k, err = m.start(ctx, p); err != nil {
			return err
		}
		m.pods[p.UID] = k
	}
	return m.report(ctx, p, k)
}

// start starts the containers of a pod.
func (m *machine) start(ctx context.Context, p *v1.Pod) (*containers, error) {
	k := &containers{name: p.Name, programs: map[string]*testbed.Program{}, logs: map[string]*testbed.Output{}}
	host := m.Node
	if !p.Spec.HostNetwork {
		host = m.sandbox.Host
	}
	specs := map[string]specFile{}
	for _, c := range p.Spec.Containers {
		s, err := m.container(ctx, p, &c)
		if err != nil {
			return nil, err
		}
		specs[c.Name] = specFile{s, host}
		argv, err := s.command(m.c.t.TempDir())
		if err != nil {
			return nil, err
		}
		log := &testbed.Output{}
		program, err := host.Launch(log, argv...)
		if err != nil {
			return nil, err
		}
		k.programs[c.Name], k.logs[c.Name] = program, log
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.specs[p.Name] = specs
	return k, nil
}

// command is a command that runs the container. The directory is for its root.
func (s containerSpec) command(dir string) ([]string, error) {
	s.Root = filepath.Join(dir, "root")
	if err := os.Mkdir(s.Root, 0o755); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "spec.json")
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{program, containerCommand, file}, os.WriteFile(file, text, 0o600)
}

// container returns what a container of a pod is on this node.
func (m *machine) container(ctx context.Context, p *v1.Pod, c *v1.Container) (s containerSpec, err error) {
	_, tag, _ := strings.Cut(c.Image, ":")
	s.Program = m.programs[tag]
	if s.Program == "" {
		s.Program = nkpBinary
	}
	env, err := m.environment(ctx, c)
	if err != nil {
		return s, err
	}
	for _, a := range c.Args {
		s.Args = append(s.Args, strings.ReplaceAll(a, "$(NODE_NAME)", env["NODE_NAME"]))
	}
	for name, value := range env {
		s.Env = append(s.Env, name+"="+value)
	}

	secrets, err := m.secrets(ctx, p)
	if err != nil {
		return s, err
	}
	s.Mounts = []containerMount{{secrets, "/var/run/secrets/kubernetes.io/serviceaccount", true}}
	for _, mount := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name == mount.Name {
				s.Mounts = append(s.Mounts, containerMount{m.hostPath(v.HostPath.Path), mount.MountPath, mount.ReadOnly})
			}
		}
	}
	s.Capabilities = []int{}
	for _, name := range c.SecurityContext.Capabilities.Add {
		number, known := map[v1.Capability]int{"NET_ADMIN": 12, "NET_RAW": 13}[name]
		if !known {
			return s, fmt.Errorf("capability %s is not known here", name)
		}
		s.Capabilities = append(s.Capabilities, number)
	}
	return s, nil
}

// hostPath returns where a path of the node is on this machine.
func (m *machine) hostPath(path string) string {
	switch path {
	case "/run/nkp":
		return m.dir
	case "/var/run/openvswitch":
		return m.RunDir
	}
	return path
}

// environment is a container's: the Service kubernetes, which kubelet adds, ConfigMaps, and variables.
func (m *machine) environment(ctx context.Context, c *v1.Container) (map[string]string, error) {
	kubernetes, err := m.c.client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	env := map[string]string{"KUBERNETES_SERVICE_HOST": kubernetes.Spec.ClusterIP, "KUBERNETES_SERVICE_PORT": "443"}
	for _, from := range c.EnvFrom {
		ref := from.ConfigMapRef
		config, err := m.c.client.CoreV1().ConfigMaps("kube-system").Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && ref.Optional != nil && *ref.Optional {
			continue
		} else if err != nil {
			return nil, err
		}
		for name, value := range config.Data {
			env[name] = value
		}
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			env[e.Name] = m.name
		}
	}
	return env, nil
}

// secrets is a directory with the service account's token, as a pod has it mounted.
func (m *machine) secrets(ctx context.Context, p *v1.Pod) (string, error) {
	token, err := m.c.tryToken(ctx, p.Spec.ServiceAccountName)
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(filepath.Join(m.c.dir, "certs", "apiserver.crt"))
	if err != nil {
		return "", err
	}
	dir := m.c.t.TempDir()
	for name, text := range map[string]string{"token": token, "ca.crt": string(ca), "namespace": p.Namespace} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// report writes the pod's status: running, and ready by its probe; or ended.
func (m *machine) report(ctx context.Context, p *v1.Pod, k *containers) error {
	status := v1.PodStatus{Phase: v1.PodRunning, PodIP: m.Node.IP4.String(), HostIP: m.Node.IP4.String()}
	ended, failed := 0, 0
	for _, c := range p.Spec.Containers {
		state := v1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
		if program := k.programs[c.Name]; program.Ended() {
			code := program.Cmd.ProcessState.ExitCode()
			state.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: int32(code)}}
			if ended++; code != 0 {
				failed++
			}
			if code != 0 && p.Status.Phase != v1.PodFailed {
				m.c.t.Logf("%s: container %s of %s ended with %d: %s", m.name, c.Name, p.Name, code, k.logs[c.Name].String())
			}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, state)
	}
	ready := v1.ConditionFalse
	switch {
	case failed > 0:
		status.Phase = v1.PodFailed
	case ended == len(p.Spec.Containers):
		status.Phase = v1.PodSucceeded
	case m.healthy(ctx, p):
		ready = v1.ConditionTrue
	}
	if p.Status.Phase == status.Phase && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == ready {
		return nil
	}
	status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
	for i := range status.ContainerStatuses {
		status.ContainerStatuses[i].Ready = ready == v1.ConditionTrue
	}
	changed := p.DeepCopy()
	changed.Status = status
	_, err := m.c.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	return err
}

// healthy asks the readiness probe of a pod.
func (m *machine) healthy(ctx context.Context, p *v1.Pod) bool {
	probe := p.Spec.Containers[0].ReadinessProbe
	if probe == nil {
		return true
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: m.Node.DialContext, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:10256%s", m.Node.IP4, probe.HTTPGet.Path), nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func (k *containers) stop() {
	for _, p := range k.programs {
		_ = p.Stop(syscall.SIGTERM)
	}
}

// serveExec serves kubectl exec at the kubelet's port.
func (m *machine) serveExec() {
	m.c.t.Helper()
	l, err := m.Node.Listen(fmt.Sprintf("%s:%d", m.Node.IP4, kubeletPort))
	must(m.c.t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // exec, namespace, pod, container
		options, err := remotecommand.NewOptions(r)
		if err != nil || len(parts) != 4 || parts[0] != "exec" {
			http.Error(w, "only kubectl exec is here", http.StatusNotFound)
			return
		}
		remotecommand.ServeExec(w, r, m, parts[2], "", parts[3], r.URL.Query()["command"], options, time.Minute, 10*time.Second,
			remotecommand.SupportedStreamingProtocols)
	}))
	server.Listener.Close()
	server.Listener = l
	server.StartTLS()
	m.c.t.Cleanup(server.CloseClientConnections)
}

// ExecInContainer runs a command with the mounts, environment and capabilities of a container.
func (m *machine) ExecInContainer(ctx context.Context, pod, _, container string, command []string, _ io.Reader,
	out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	m.mu.Lock()
	s, there := m.specs[pod][container]
	m.mu.Unlock()
	if !there || command[0] != "/nkp" {
		return fmt.Errorf("pod %s has no container %s with the program %s", pod, container, command[0])
	}
	s.Args = command[1:]
	return m.run(ctx, s, out, errOut)
}

// run runs a container to its end.
func (m *machine) run(ctx context.Context, s specFile, out, errOut io.Writer) error {
	dir, err := os.MkdirTemp(m.c.dir, "exec-")
	if err != nil {
		return err
	}
	argv, err := s.command(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, errOut
	if err := s.host.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// asRoot runs nkp on the node itself: with the node's files, and every capability.
func (m *machine) asRoot(args ...string) (string, error) {
	s := containerSpec{Program: nkpBinary, Args: args, Mounts: []containerMount{
		{m.dir, "/run/nkp", false}, {m.RunDir, "/var/run/openvswitch", false},
	}}
	var out bytes.Buffer
	err := m.run(m.c.ctx, specFile{s, m.Node}, &out, &out)
	return out.String(), err
}
