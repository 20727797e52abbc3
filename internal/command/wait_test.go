package command

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/remote"
	"github.com/nkp-proxy/nkp/k8s"
)

// serviceAPI is an API server with the Services web and headless, slices "name=version" of web, and a node whose pod of nkp's does not
// run. lists counts the lists of slices.
func serviceAPI(t *testing.T, version string, lists *atomic.Int32, slices ...string) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/services/web"):
			fmt.Fprintf(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","resourceVersion":%q},"spec":{"clusterIP":"10.96.0.1"}}`, version)
		case strings.HasSuffix(path, "/services/headless"):
			_, _ = io.WriteString(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"headless"},"spec":{"clusterIP":"None"}}`)
		case strings.Contains(path, "/services/"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound","message":"services \"wbe\" not found"}`)
		case strings.HasSuffix(path, "/endpointslices"):
			lists.Add(1)
			var items []string
			for _, s := range slices {
				name, v, _ := strings.Cut(s, "=")
				items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q},
					"endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"web-1"}}]}`, name, v))
			}
			fmt.Fprintf(w, `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"10"},"items":[%s]}`, strings.Join(items, ","))
		case path == "/api/v1/nodes":
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"node-1"}}]}`)
		default:
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"nkp-1"},
				"spec":{"nodeName":"node-1","containers":[{"name":"nkp"}]},"status":{"phase":"Failed"}}]}`)
		}
	}))
	t.Cleanup(api.Close)
	return api.URL
}

// What an agent has is compared with what was there at first. The API server is asked again only where versions do not say which state is
// later: about slices that are missing or left, and where its versions are no numbers.
func TestWaitCompares(t *testing.T) {
	for _, x := range []struct {
		name, service string
		want, present []string
		have          map[string]string
		lacks         string // a part of the reason; "": nothing
		lists         int32
	}{
		{"the same", "5", []string{"a=6"}, nil, map[string]string{"a": "6"}, "", 0},
		{"a later state", "5", []string{"a=6"}, nil, map[string]string{"a": "12"}, "", 0},
		{"an earlier state", "5", []string{"a=12"}, nil, map[string]string{"a": "6"}, "EndpointSlice a at version \"6\", not 12", 0},
		{"the Service is older", "4", []string{"a=6"}, nil, map[string]string{"a": "6"}, "the Service at version \"4\", not 5", 0},
		{"a slice has not come", "5", []string{"a=6"}, []string{"a=6"}, nil, `EndpointSlice a at version "", not 6`, 1},
		{"a slice was deleted since", "5", []string{"a=6", "b=7"}, []string{"a=6"}, map[string]string{"a": "6"}, "", 1},
		{"a slice has come since", "5", []string{"a=6"}, nil, map[string]string{"a": "6", "c": "11"}, "", 0},
		{"a deleted slice is left", "5", []string{"a=6"}, []string{"a=6"}, map[string]string{"a": "6", "c": "9"}, "EndpointSlice c, which is deleted", 0},
		{"another version that is none to compare, and present", "5", []string{"a=x"}, []string{"a=y"}, map[string]string{"a": "y"}, "", 1},
		{"another version that is none to compare, and not present", "5", []string{"a=x"}, []string{"a=y"}, map[string]string{"a": "w"}, "EndpointSlice a at version", 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			var lists atomic.Int32
			cluster, err := remote.New(&rest.Config{Host: serviceAPI(t, "5", &lists, x.present...)}, "kube-system", "")
			must(t, err)
			w := &serviceWait{nodes: &nodes{cluster: cluster}, name: k8s.ServiceName{Namespace: "default", Name: "web"}, wantList: "10",
				want: map[string]string{theService: "5"}}
			for _, s := range x.want {
				name, v, _ := strings.Cut(s, "=")
				w.want[name] = v
			}
			got := w.lacks(t.Context(), &k8s.Versions{Service: x.service, EndpointSlices: x.have})
			if !strings.Contains(got, x.lacks) || (got == "") != (x.lacks == "") || lists.Load() != x.lists {
				t.Errorf("%q after %d lists; want %q after %d", got, lists.Load(), x.lacks, x.lists)
			}
		})
	}
}

// A wait ends with 2 where there is nothing to wait for, and with 1 and the node's name where an agent does not answer, or a slice still
// names the pod.
func TestWaitStatus(t *testing.T) {
	var lists atomic.Int32
	url := serviceAPI(t, "5", &lists, "a=6")
	for _, x := range []struct {
		args   string
		status int
		error  string
	}{
		{"wait", exitUsage, "takes one Service"},
		{"wait web", exitUsage, `"web" is not NAMESPACE/NAME`},
		{"wait svc//web", exitUsage, "is not NAMESPACE/NAME"},
		{"wait svc/web --timeout 0s", exitUsage, "is not positive"},
		{"wait svc/wbe", exitUsage, `services "wbe" not found`},
		{"wait svc/default/headless", exitUsage, "svc/default/headless has no cluster IP"},
		{"wait svc/web --timeout 1s", exitFailure, "node-1: nkp on node node-1: pod nkp-1 is Failed"},
		{"wait svc/web --timeout 1s -n shop", exitFailure, "svc/shop/web is not in force on 1 node of 1 after 1s: node-1"},
		{"wait svc/web --timeout 1s --without pod/web-1", exitFailure, "EndpointSlice a still names pod web-1"},
		{"wait svc/1web --timeout 1s", exitUsage, "not found"},
	} {
		var out, errOut bytes.Buffer
		status := Main("kubectl-nkp", append(strings.Fields(x.args), "--server", url, "--kubeconfig", "/dev/null"), &out, &errOut)
		if status != x.status || !strings.Contains(errOut.String(), x.error) || out.Len() > 0 {
			t.Errorf("kubectl nkp %s: %d, want %d\n%s%s", x.args, status, x.status, out.String(), errOut.String())
		}
	}
}

// A reason that the agent calls final ends the wait only if the agent has what is waited for: an older Service may be refused, and the present
// one not. Reasons of agents are printed once each, and not without bound.
func TestWaitJudges(t *testing.T) {
	var errOut bytes.Buffer
	ended := false
	w := &serviceWait{name: k8s.ServiceName{Namespace: "default", Name: "web"}, wantList: "10", want: map[string]string{theService: "5"},
		errOut: &errOut, reasons: map[string]string{"a": "", "b": "left", "c": "was not asked"}, final: []string{"b"}, cancel: func() { ended = true }}
	for _, x := range []struct {
		service, why string
		final        bool // the agent's
		says         string
		ends         bool
	}{
		{"5", "", false, "", false},
		{"4", "", false, "has the Service at version \"4\", not 5", false},
		{"5", "left", true, "left", true},
		{"6", "left", true, "left", true},
		{"4", "too large", true, "too large", false},
		{"5", "busy", false, "busy", false},
		{"", "follows manifests", true, "follows manifests", true},
		{"", "the agent does not have the Service", false, "the agent does not have the Service", false},
	} {
		why, final := w.judge(t.Context(), &api.InForce{Versions: k8s.Versions{Service: x.service}, Why: x.why, Final: x.final})
		if why != x.says || final != x.ends {
			t.Errorf("%+v: %q, %t", x, why, final)
		}
	}
	for i := range 100 {
		w.explain("a", "same")
		w.explain("b", fmt.Sprint("reason ", i))
	}
	if n := strings.Count(errOut.String(), "\n"); n != maxPrinted || strings.Count(errOut.String(), "waiting for a: same\n") != 1 {
		t.Errorf("%d lines:\n%s", n, errOut.String())
	}
	errOut.Reset()
	if err := w.report(t.Context(), nil, 0); err == nil || err.Error() != "svc/default/web is not in force on 1 node of 3, and no waiting changes that: b" ||
		errOut.String() != "b: left\n" || ended {
		t.Errorf("%v\n%s", err, errOut.String())
	}
}

// A node that is added meanwhile is waited for.
func TestWaitNodeJoins(t *testing.T) {
	var pods, lists atomic.Int32
	objects := serviceAPI(t, "5", &lists, "a=6")
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/nodes":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"node-2"}}]}`)
		case strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("fieldSelector") != "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
		case strings.HasSuffix(r.URL.Path, "/pods") && pods.Add(1) > 1:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"nkp-2"},
				"spec":{"nodeName":"node-2","containers":[{"name":"nkp"}]},"status":{"phase":"Failed"}}]}`)
		default:
			http.Redirect(w, r, objects+r.URL.String(), http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(api.Close)
	var out, errOut bytes.Buffer
	args := "wait svc/web --timeout 3s --kubeconfig /dev/null --server " + api.URL
	status := Main("kubectl-nkp", strings.Fields(args), &out, &errOut)
	if status != exitFailure || !strings.Contains(errOut.String(), "waiting for node-2: ") || !strings.Contains(errOut.String(), "is not in force on 1 node of 1 after 3s: node-2") {
		t.Errorf("%d\n%s%s", status, out.String(), errOut.String())
	}
}

// A node that leaves the cluster meanwhile is not waited for, and not counted. One that only has no pod of nkp's for now is.
func TestWaitNodeLeaves(t *testing.T) {
	for _, nodes := range []string{"node-1", "node-2"} {
		var pods atomic.Int32
		var lists atomic.Int32
		objects := serviceAPI(t, "5", &lists, "a=6")
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/api/v1/nodes":
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":%q}}]}`, nodes)
			case strings.HasSuffix(r.URL.Path, "/pods") && pods.Add(1) > 1:
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
			default:
				http.Redirect(w, r, objects+r.URL.String(), http.StatusTemporaryRedirect)
			}
		}))
		t.Cleanup(api.Close)
		var out, errOut bytes.Buffer
		args := "wait svc/web --timeout 2s --kubeconfig /dev/null --server " + api.URL
		status := Main("kubectl-nkp", strings.Fields(args), &out, &errOut)
		if left := nodes != "node-1"; left != (status == 0) || left != strings.Contains(out.String(), "in force on 0 nodes") ||
			left == strings.Contains(errOut.String(), "is not in force on 1 node of 1") {
			t.Errorf("nodes %s: %d\n%s%s", nodes, status, out.String(), errOut.String())
		}
	}
}

// Where the time ends amid a question, the wait says what the last answer said: the API server does answer.
func TestWaitEndsAmidQuestion(t *testing.T) {
	var services, lists atomic.Int32
	objects := serviceAPI(t, "5", &lists, "a=6")
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/services/web") && services.Add(1) > 1 {
			<-r.Context().Done()
			return
		}
		http.Redirect(w, r, objects+r.URL.String(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(api.Close)
	var out, errOut bytes.Buffer
	args := "wait svc/web --without web-1 --timeout 2s --kubeconfig /dev/null --server " + api.URL
	status := Main("kubectl-nkp", strings.Fields(args), &out, &errOut)
	if status != exitFailure || !strings.Contains(errOut.String(), "EndpointSlice a still names pod web-1") {
		t.Errorf("%d\n%s%s", status, out.String(), errOut.String())
	}
}
