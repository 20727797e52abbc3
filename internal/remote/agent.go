package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Greeting is the line that `nkp connect` prints when it is connected to the agent.
const Greeting = "connected\n"

// Agent is nkp's agent on a node, in a pod.
type Agent struct {
	Node, Pod string
	cluster   *Cluster
	command   []string
	phase     v1.PodPhase
}

// container is the container of nkp's pods in which the agent runs.
const container = "nkp"

func (c *Cluster) agent(pod *v1.Pod) *Agent {
	// The image decides where the program is; it is always the container's process 1. HostProcess containers
	// of Windows have no such file.
	program := "/proc/1/exe"
	if pod.Spec.NodeSelector[v1.LabelOSStable] == string(v1.Windows) {
		program = "nkp.exe"
	}
	a := &Agent{Node: pod.Spec.NodeName, Pod: pod.Name, cluster: c,
		command: []string{program, "connect"}, phase: pod.Status.Phase}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name != container {
			continue
		}
		for _, arg := range pod.Spec.Containers[i].Args {
			if strings.HasPrefix(arg, "--socket=") || strings.HasPrefix(arg, "--config=") {
				a.command = append(a.command, arg)
			}
		}
	}
	return a
}

// Dial connects to the agent. The context bounds the wait for the connection, not its life.
func (a *Agent) Dial(ctx context.Context) (net.Conn, error) {
	if a.phase != v1.PodRunning {
		return nil, fmt.Errorf("pod %s is %s", a.Pod, a.phase)
	}

	exec, err := a.executor()
	if err != nil {
		return nil, err
	}

	life, end := context.WithCancel(context.WithoutCancel(ctx))
	near, far := net.Pipe()
	c := &conn{Conn: near, end: end}
	stop := context.AfterFunc(ctx, func() { c.Close() })

	ended := make(chan error, 1)
	go func() {
		var complaint head
		err := exec.StreamWithContext(life,
			remotecommand.StreamOptions{Stdin: far, Stdout: far, Stderr: &complaint})
		if text := strings.TrimSpace(complaint.String()); text != "" {
			err = errors.New(strings.Map(printable, strings.ReplaceAll(text, "\n", "; ")))
		}
		ended <- err
		far.Close()
	}()

	greeting := make([]byte, len(Greeting))
	_, err = io.ReadFull(c, greeting)
	if stop() && err == nil && string(greeting) == Greeting {
		return c, nil
	}

	c.Close()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("pod %s: %w", a.Pod, ctx.Err())
	case err = <-ended:
	}

	if err == nil || errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%q is no answer of nkp connect", greeting)
	}
	return nil, fmt.Errorf("pod %s: %w", a.Pod, err)
}

// executor runs the command by WebSocket, or by SPDY if a proxy or an old API server does not take
// WebSockets.
func (a *Agent) executor() (remotecommand.Executor, error) {
	options := &v1.PodExecOptions{
		Container: container, Command: a.command, Stdin: true, Stdout: true, Stderr: true,
	}
	url := a.cluster.client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(a.cluster.namespace).Name(a.Pod).SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL()
	websocket, err := remotecommand.NewWebSocketExecutor(a.cluster.config, "GET", url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(a.cluster.config, "POST", url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// conn is the near end of an exec's stream. Close ends the exec.
type conn struct {
	net.Conn
	end context.CancelFunc
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.end()
	return err
}

// printable drops what a terminal could interpret.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}

// head keeps the first maxHead bytes that are written to it.
type head struct{ bytes.Buffer }

const maxHead = 4 << 10

func (h *head) Write(b []byte) (int, error) {
	h.Buffer.Write(b[:min(len(b), maxHead-h.Len())])
	return len(b), nil
}
