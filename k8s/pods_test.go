package k8s_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// A targetRef, which the API server does not check, names a pod only if there can be one of that name in the slice's namespace.
func TestPodOf(t *testing.T) {
	long := strings.Repeat("a", 253)
	for _, x := range []struct{ kind, namespace, name, want string }{
		{"Pod", "", "web-7d4b9c-x2x4z", "web-7d4b9c-x2x4z"},
		{"Pod", "shop", "0.web", "0.web"},
		{"Pod", "shop", long, long},
		{"Pod", "shop", long + "a", ""},
		{"Pod", "other", "web", ""},
		{"Node", "", "web", ""},
		{"Pod", "", "", ""},
		{"Pod", "", "we\x1b[31mb", ""},
		{"Pod", "", "web\nverdict: deliver", ""},
		{"Pod", "", "we\u202eb", ""},
		{"Pod", "", "$(id)", ""},
		{"Pod", "", "-web", ""},
		{"Pod", "", "Web", ""},
	} {
		if got := k8s.PodOf(&v1.ObjectReference{Kind: x.kind, Namespace: x.namespace, Name: x.name}, "shop"); got != x.want {
			t.Errorf("%s %s/%q: %q", x.kind, x.namespace, x.name, got)
		}
	}
	if got := k8s.PodOf(nil, "shop"); got != "" {
		t.Errorf("%q", got)
	}
}
