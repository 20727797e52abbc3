package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/remote"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// The program's name decides what it is: nkp, kubectl's plugin, or the plugin's completion.
func TestProgramName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/nkp": "nkp status", "kubectl-nkp": "kubectl nkp status", "/x/kubectl_nkp": "kubectl nkp status", "kubectl-nkp.exe": "kubectl nkp status",
	} {
		var out, errOut bytes.Buffer
		if status := Main(program, []string{"status", "--help"}, &out, &errOut); status != exitOK || !strings.Contains(out.String(), "\n  "+want+" [flags]\n") {
			t.Errorf("%s: %d, %s%s", program, status, out.String(), errOut.String())
		}
		if status := Main(program, []string{"sttaus"}, &out, &errOut); status != exitUsage || !strings.Contains(errOut.String(), "did you mean status?") {
			t.Errorf("%s sttaus: %d, %s", program, status, errOut.String())
		}
	}
	var out, errOut bytes.Buffer
	if Main("/x/kubectl_complete-nkp", []string{"stat"}, &out, &errOut); !strings.HasPrefix(out.String(), "status\t") {
		t.Errorf("completion of stat: %s%s", out.String(), errOut.String())
	}
}

// nkp connect greets once it is connected, passes bytes, and ends when its input does. Without an agent it says so.
func TestConnect(t *testing.T) {
	toAgent, in := io.Pipe()
	out, fromAgent := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- connect(t.Context(), fakeAgent(t), toAgent, fromAgent) }()
	greeting := make([]byte, len(remote.Greeting))
	if _, err := io.ReadFull(out, greeting); err != nil || string(greeting) != remote.Greeting {
		t.Fatalf("%q, %v", greeting, err)
	}
	near, far := net.Pipe()
	go io.Copy(in, far)
	go io.Copy(far, out)
	dialed := false
	caller := api.NewRemoteCaller("node-1", func(context.Context) (net.Conn, error) {
		if dialed {
			return nil, errors.New("no second one")
		}
		dialed = true
		return near, nil
	})
	for range 2 {
		if list, err := caller.Services(t.Context(), api.ServiceFilter{}); err != nil || len(list.Services) == 0 {
			t.Fatalf("%+v, %v", list, err)
		}
	}
	in.Close()
	if err := wait.Receive(t, "the end of connect without input", ended); err != nil {
		t.Error(err)
	}
	if err := connect(t.Context(), "/nonexistent", strings.NewReader(""), io.Discard); !errors.Is(err, api.ErrAbsent) {
		t.Error(err)
	}
}

// Nodes that serve a Service port alike are one line, with the sum of their counters; one that serves it otherwise has its own.
func TestMergeServices(t *testing.T) {
	web := func(inForce bool, local string, connections uint64) api.ServiceInfo {
		s := info("web", &k8s.Counters{Connections: connections, Packets: &k8s.Directions{In: 1, Out: 2}, Dropped: map[k8s.DropReason]uint64{k8s.DropNoEndpoint: 1}})
		s.Endpoints = []api.EndpointInfo{{Address: "10.0.0.1:80", Node: "a", Local: local == "a", Zone: map[bool]string{true: "zone-1"}[local == "a"], InForce: inForce}}
		return s
	}
	answers := []answer[api.ServiceList]{
		{Node: "a", Answer: listOf(time.Now(), web(true, "a", 3))},
		{Node: "b", Answer: listOf(time.Now(), web(false, "b", 10))},
		{Node: "c", Answer: listOf(time.Now(), web(true, "c", 4), info("only", nil))},
		{Node: "d", Error: "nkp on node d: gone"},
		{Node: "e", Answer: listOf(time.Now(), web(true, "e", 5))},
	}
	answers[4].Answer.Services[0].MoreEndpoints = 7 // left out of a long answer
	list := mergeServices(answers)
	var b strings.Builder
	must(t, list.write(&b, false, len(answers)))
	var got []string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"SERVICE FAMILY FRONTENDS ENDPOINTS CONNECTIONS PKTS IN PKTS OUT BYTES IN BYTES OUT NODES",
		"default/only/TCP IPv4 - 0/0 - - - - - c",
		"default/web/TCP IPv4 - 1/1 7 2 4 - - a, c", "no endpoint: 2 packets",
		"default/web/TCP IPv4 - 0/1 10 1 2 - - b", "no endpoint: 1 packet",
		"default/web/TCP IPv4 - 8 5 1 2 - - e", "no endpoint: 1 packet",
	}
	want[7] = k8s.DropNoEndpoint.Text() + ": 1 packet"
	want[3], want[5] = k8s.DropNoEndpoint.Text()+": 2 packets", k8s.DropNoEndpoint.Text()+": 1 packet"
	if strings.Join(got, "\n") != strings.Join(want, "\n") || list.Failures["d"] == "" {
		t.Errorf("%s\nwant\n%s\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), list.Failures)
	}
}

// The list of nodes says what is wrong below each, and which nodes did not answer or have no nkp.
func TestNodesText(t *testing.T) {
	now := time.Now()
	in := &api.Status{Node: "a", Mode: "ovs", Version: "v1", Started: now.Add(-time.Hour), ServicePorts: 7, Endpoints: 9, Source: api.SourceStatus{Synced: true},
		Status: &bridge.Status{InStep: true, Bridge: bridge.BridgeStatus{Exists: true}, Programming: bridge.ProgrammingStats{Programming: dataplane.Programming{Changes: 3, P99Milli: 12.34}}}}
	out := &api.Status{Node: "b", Mode: "ovs", Version: "v1", Started: now, Source: api.SourceStatus{Kind: "API server u"}, Status: &bridge.Status{},
		Warnings: []string{"the disk is full"}}
	inTables := &api.Status{Node: "d", Mode: "nftables", Version: "v1", Started: now, Source: api.SourceStatus{Synced: true},
		NFTables: &fallback.Status{Families: []fallback.FamilyStatus{{Family: "IPv4", InStep: true, Programming: dataplane.Programming{Changes: 1, P99Milli: 0.5}}}}}
	var b strings.Builder
	err := writeNodes(&b, &clusterStatus{withoutNkp: withoutNkp{WithoutNkp: []string{"e", "f", "g", "h"}}, Nodes: []answer[api.Status]{
		{Node: "a", Answer: in}, {Node: "b", Answer: out}, {Node: "c", Error: "nkp on node c: timeout"}, {Node: "d", Answer: inTables}}}, now)
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"a ovs yes 7 9 12.3 ms v1 1h0m0s b", "b ovs NO 0 0 - v1 0s SOURCE: API server u has not synced, or does not answer WARNING: the disk is full c",
		"d nftables yes 0 0 0.5 ms v1 0s",
		"c - ? - - - - - NO ANSWER: nkp on node c: timeout", "4 nodes without a pod of nkp's: e, f, g and 1 more",
	} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v, %q is not in\n%s", err, want, b.String())
		}
	}
}

// Of many nodes a bounded number is asked at a time, and each has its own time limit.
func TestAskNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, limit = 3, 100 * time.Millisecond
		agents := make([]peer, rounds*parallelNodes)
		for i := range agents {
			agents[i] = peer{Node: "n", Caller: api.NewRemoteCaller("n", nil)}
		}
		var running atomic.Int32
		begun := time.Now()
		answers := askAll(t.Context(), agents, limit, func(ctx context.Context, _ *api.Caller) (*int, error) {
			if n := running.Add(1); n > parallelNodes {
				t.Errorf("%d at a time", n)
			}
			defer running.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if took := time.Since(begun); took != rounds*limit || len(answers) != len(agents) || answers[0].Error == "" {
			t.Errorf("took %v: %d answers, %+v", took, len(answers), answers[0])
		}
		if err := complain(io.Discard, true, answers); err == nil || !strings.HasPrefix(err.Error(), "96 of 96 nodes did not answer") {
			t.Error(err)
		}
	})
}

// A pod in both families is traced from its address of the destination's family; to a Service, from the first that reaches it. If none
// does, the error is that of the first.
func TestTraceFromPod(t *testing.T) {
	socket := serveAgent(t, map[string]http.HandlerFunc{"/v1/trace": func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if strings.Contains(q.Get("to"), "only4") && strings.Contains(q.Get("from"), "fd00") || strings.Contains(q.Get("to"), "gone") {
			http.Error(w, "no way from "+q.Get("from"), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(trace.Result{Service: q.Get("from")})
	}})
	clients := []netip.Addr{netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.0.0.5")}
	for to, want := range map[string]string{
		"svc/a/both:80": "fd00::5", "svc/a/only4:80": "10.0.0.5", "10.96.0.1:80": "10.0.0.5", "[fd00::1]:80": "fd00::5",
		"svc/a/gone:80": "no way from fd00::5",
	} {
		ask := trace.Request{From: "pod/a/client", To: to}
		ends, err := ask.Parse("--")
		must(t, err)
		r, err := traceFrom(t.Context(), api.NewCaller(socket), ask, clients, &ends)
		if err == nil && r.Service != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %s", to, r, err, want)
		}
	}
}

// The plugin's commands name the nodes that do not answer, those without nkp, and end as documented; JSON has a field for each node.
func TestPluginWithoutAnswers(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/nodes" {
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"node-1"}},{"metadata":{"name":"node-2"}}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[
			{"metadata":{"name":"nkp-1"},"spec":{"nodeName":"node-1","containers":[{"name":"nkp"}]},"status":{"phase":"Failed"}}]}`)
	}))
	defer api.Close()
	const absent = "nkp on node node-1: pod nkp-1 is Failed"
	for _, x := range []struct {
		args       string
		status     int
		out, error string
	}{
		{"status", exitFailure, "NO ANSWER: " + absent, "1 of 1 node did not answer"},
		{"status", exitFailure, "1 node without a pod of nkp's: node-2", ""},
		{"status --node node-1", exitFailure, "", absent},
		{"status -o json", exitFailure, `"withoutNkp": [
    "node-2"
  ]`, ""},
		{"services web", exitFailure, "", absent},
		{"services -o json", exitFailure, `"failures": {
    "node-1": "` + absent + `"
  }`, ""},
		{"diff", exitDiffError, "", absent},
		{"diff -o json", exitDiffError, `"error": "` + absent + `"`, ""},
		{"trace --from 10.0.0.5 --to 10.96.0.1:80 --node node-1", exitFailure, "", absent},
		{"trace --from 10.0.0.5 --to 10.96.0.1:80", exitUsage, "", "name the node that its packets come to with --node"},
		{"trace --from 10.0.0.5 --to 10.96.0.1:80 --follow=3s", exitUsage, "", "--follow needs --live"},
		{"status --request-timeout 0s", exitUsage, "", "is not positive"},
		{"status --watch", exitUsage, "", "unknown flag: --watch"},
	} {
		var out, errOut bytes.Buffer
		status := Main("kubectl-nkp", append(strings.Fields(x.args), "--server", api.URL, "--kubeconfig", "/dev/null"), &out, &errOut)
		if status != x.status || !strings.Contains(out.String(), x.out) || !strings.Contains(errOut.String(), x.error) {
			t.Errorf("kubectl nkp %s: %d, want %d\n%s%s", x.args, status, x.status, out.String(), errOut.String())
		}
	}
}
