package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/apifake"
)

// A pod is asked for once. Without the right to get it, an EndpointSlice that names it helps, and otherwise the error says what does.
func TestPodIPs(t *testing.T) {
	allowed, asked := true, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/endpointslices"):
			s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}}
			for i, name := range []string{"other", "web-0"} {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, TargetRef: &v1.ObjectReference{Kind: "Pod", Name: name}})
			}
			apifake.Answer(w, 200, &discoveryv1.EndpointSliceList{
				TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"},
				Items:    []discoveryv1.EndpointSlice{s},
			})
		case !allowed:
			apifake.Answer(w, 403, apifake.Status(403, metav1.StatusReasonForbidden, "no"))
		case strings.HasSuffix(path, "/nosuch"):
			apifake.Answer(w, 404, apifake.Status(404, metav1.StatusReasonNotFound, "no"))
		default:
			p := &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, Status: v1.PodStatus{Phase: v1.PodPending}}
			if strings.HasSuffix(path, "/namespaces/default/pods/web-0") {
				p.Status.PodIPs = []v1.PodIP{{IP: "fd00::7"}, {IP: "10.0.0.7"}}
			}
			apifake.Answer(w, 200, p)
		}
	}))
	defer server.Close()
	s := newTestSource(t, Options{Master: server.URL})
	for _, c := range []struct {
		name    string
		allowed bool
		want    string
		asked   int
	}{
		{"web-0", true, "[fd00::7 10.0.0.7]", 1},
		{"nosuch", true, "the API server has no pod default/nosuch", 1},
		{"pending", true, "pod default/pending has no address yet (phase Pending)", 1},
		{"web-0", false, "[10.0.0.1]", 2},
		{"client", false, "nkp may not get pods", 2},
	} {
		allowed, asked = c.allowed, 0
		ips, err := s.PodIPs(t.Context(), "default", c.name)
		if got := fmt.Sprint(ips, err); !strings.Contains(got, c.want) || asked != c.asked {
			t.Errorf("%s, allowed %t: %s after %d requests; want %s after %d", c.name, c.allowed, got, asked, c.want, c.asked)
		}
	}
	server.Close()
	if ips, err := s.PodIPs(t.Context(), "default", "web-0"); err == nil || !strings.Contains(err.Error(), "pass the pod's address") {
		t.Errorf("a server that is away: %v, %v", ips, err)
	}
}
