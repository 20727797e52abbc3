package remote

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// pod returns a pod on a node.
func pod(name, node string, phase v1.PodPhase, args ...string) v1.Pod {
	return v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "other", Args: []string{"--socket=/x"}}, {Name: container, Args: args}}},
		Status:     v1.PodStatus{Phase: phase},
	}
}

// cluster returns a Cluster whose API server has pods in one namespace, under one label. Elsewhere there are pods of others.
func cluster(t *testing.T, pods ...v1.Pod) *Cluster {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		q := r.URL.Query()
		switch {
		case r.URL.Path == "/api/v1/namespaces/kube-system/pods" && q.Get("labelSelector") == "app=nkp":
			for _, p := range pods {
				if f := q.Get("fieldSelector"); f == "" || f == "spec.nodeName="+p.Spec.NodeName {
					list.Items = append(list.Items, p)
				}
			}
		case r.URL.Path == "/api/v1/pods" && q.Get("fieldSelector") == "status.podIP=10.0.0.7":
			list.Items = []v1.Pod{pod("ended", "node-8", v1.PodSucceeded), pod("client", "node-9", v1.PodRunning)}
		case r.URL.Path == "/api/v1/nodes":
			_ = json.NewEncoder(w).Encode(v1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []v1.Node{
				{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Address: "172.16.0.3"}}}},
				{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
			}})
			return
		default:
			list.Items = []v1.Pod{pod("a-tenants", "node-1", v1.PodRunning)}
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(s.Close)
	c, err := New(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "kube-system", "app=nkp")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Agents are looked for in nkp's namespace only, by nkp's label. Of each node's pods the one that runs and stays is asked, with the
// flags by which its agent finds the socket.
func TestAgents(t *testing.T) {
	ending := pod("ending", "node-1", v1.PodRunning)
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_000_000_000, 0)}
	windows := pod("win", "node-2", v1.PodRunning)
	windows.Spec.NodeSelector = map[string]string{v1.LabelOSStable: string(v1.Windows)}
	c := cluster(t, windows, pod("failed", "node-1", v1.PodFailed), ending, pod("runs", "node-1", v1.PodRunning, "run", "--socket=/run/s", "--v=4", "--config=/c"),
		pod("waits", "", v1.PodPending))
	agents, err := c.Agents(t.Context(), "")
	if err != nil || len(agents) != 2 {
		t.Fatalf("%d agents, %v", len(agents), err)
	}
	if a := agents[0]; a.Node != "node-1" || a.Pod != "runs" || !slices.Equal(a.command, []string{"/proc/1/exe", "connect", "--socket=/run/s", "--config=/c"}) {
		t.Errorf("of node-1: %s on %s, %q", a.Pod, a.Node, a.command)
	}
	if a := agents[1]; a.Pod != "win" || a.command[0] != "nkp.exe" {
		t.Errorf("of node-2: %s, %q", a.Pod, a.command)
	}
	if a, err := c.Agents(t.Context(), "node-2"); err != nil || len(a) != 1 || a[0].Pod != "win" {
		t.Errorf("asked for by name: %+v, %v", a, err)
	}
	if _, err := c.Agents(t.Context(), "node-7"); err == nil {
		t.Error("a node without nkp has an agent")
	}
	if names, err := c.Nodes(t.Context()); err != nil || !slices.Equal(names, []string{"node-1", "node-3"}) {
		t.Errorf("nodes: %q, %v", names, err)
	}
	if _, err := cluster(t).Agents(t.Context(), ""); err == nil {
		t.Error("a cluster without nkp has agents")
	}
}

// The node of an address is the one that has it, or that of the pod which runs with it.
func TestNodeOf(t *testing.T) {
	c := cluster(t)
	for addr, want := range map[string]string{"172.16.0.3": "node-3", "10.0.0.7": "node-9"} {
		if got, err := c.NodeOf(t.Context(), netip.MustParseAddr(addr)); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", addr, got, err, want)
		}
	}
}
