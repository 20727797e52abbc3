package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/wait"
)

// scrape reads a path of the metrics port as the bearer of a token, and returns the status and the answer.
func (n *node) scrape(scheme, path, token string) (code int, text string, err error) {
	client := http.Client{Timeout: wait.Limit, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // self-signed
		DialContext: n.Node.DialContext}}
	req, err := http.NewRequestWithContext(n.c.ctx, http.MethodGet, scheme+"://127.0.0.1:10249"+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// With --metrics-authorization the real API server decides who reads the metrics, by the roles that ship; a client that it has let
// through is served while the API server is away.
func TestMetricsAuthorization(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{})
	c.startAgent("--metrics-authorization")
	other := c.createAccount("other")
	answer := func(scheme, path, token string, want int, text string) error {
		code, got, err := c.scrape(scheme, path, token)
		if err == nil && (code != want || !strings.Contains(got, text)) {
			err = fmt.Errorf("%s: %d %.200q, want %d and %q", path, code, got, want, text)
		}
		return err
	}
	c.eventually("without the right to ask, every client is refused", func() error { return answer("https", "/metrics", other, 503, "cannot be asked") })
	if out := c.status(); !strings.Contains(out, "system:auth-delegator") {
		t.Errorf("status does not name the missing role:\n%s", out)
	}

	c.applyRoles("components/metrics/rbac.yaml")
	prometheus := c.createAccount("prometheus")
	must(t, c.createRole(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reads"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nkp:metrics-reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "prometheus"}},
	}))
	c.eventually("Prometheus is served", func() error { return answer("https", "/metrics", prometheus, 200, "nkp_source_answers 1") })
	must(t, answer("https", "/metrics", other, 403, `"system:serviceaccount:kube-system:other" may not get path "/metrics"`))
	must(t, answer("https", "/configz", prometheus, 403, "/configz"))
	must(t, answer("https", "/metrics", "", 401, "bearer token"))
	must(t, answer("https", "/metrics", "forged", 401, "does not accept"))
	if code, text, err := c.scrape("http", "/metrics", prometheus); err == nil && code != http.StatusBadRequest { // or the connection is reset
		t.Errorf("over plain HTTP: %d %.200q", code, text)
	}
	if out := c.status(); strings.Contains(out, "auth-delegator") {
		t.Errorf("status still names the missing role:\n%s", out)
	}
	must(t, answer("https", "/metrics", prometheus, 200, `nkp_metrics_refused_requests_total{reason="forbidden"} 2`))

	c.server.Kill()
	must(t, answer("https", "/metrics", prometheus, 200, "nkp_build_info"))
	must(t, answer("https", "/metrics", other, 503, "API server"))
}
