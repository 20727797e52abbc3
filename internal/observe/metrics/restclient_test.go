package metrics

import (
	"context"
	"net/url"
	"testing"
	"time"

	clientgo "k8s.io/client-go/tools/metrics"
)

// What client-go reports of its requests is served under the names that all of Kubernetes' components use.
func TestClient(t *testing.T) {
	m, _ := newTest(OVS)
	ctx, server := context.Background(), url.URL{Scheme: "https", Host: "api:6443", Path: "/api/v1/services"}
	clientgo.RequestResult.Increment(ctx, "200", "GET", server.Host)
	clientgo.RequestResult.Increment(ctx, "200", "GET", server.Host)
	clientgo.RequestLatency.Observe(ctx, "GET", server, time.Millisecond)
	clientgo.RateLimiterLatency.Observe(ctx, "GET", server, time.Millisecond)
	if n := value(t, m, "rest_client_requests_total", "code=200", "method=GET", "host=api:6443"); n != 2 {
		t.Errorf("%v requests, want 2", n)
	}
	for _, name := range []string{"rest_client_request_duration_seconds", "rest_client_rate_limiter_duration_seconds"} {
		if n := value(t, m, name, "verb=GET", "host=api:6443"); n != 1 {
			t.Errorf("%s: %v observations, want 1", name, n)
		}
	}
}
