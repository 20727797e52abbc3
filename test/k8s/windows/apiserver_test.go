//go:build linux

package windows

import (
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/test/apifake"
)

// newAPIServer serves the objects of manifests on loopback.
func newAPIServer(t *testing.T, path string) *httptest.Server {
	t.Helper()
	m := manifest.Load(path)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	api := apifake.New()
	for _, c := range m.Objects {
		if s, ok := c.Object.(*v1.Service); ok {
			corev1.SetObjectDefaults_Service(s)
		}
		api.Put(c.Object)
	}
	s := httptest.NewServer(api)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}
