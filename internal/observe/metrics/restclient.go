package metrics

import (
	"context"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	clientgo "k8s.io/client-go/tools/metrics"
)

// Requests to the API server, as all of Kubernetes' components count them (component-base,
// metrics/prometheus/restclient).
var (
	apiRequests = define(Counter, "rest_client_requests_total",
		"Number of HTTP requests, partitioned by status code, method, and host.", "code", "method", "host").
		only("Services come from an API server")
	apiLatency = define(Histogram, "rest_client_request_duration_seconds",
		"Request latency in seconds. Broken down by verb, and host.", "verb", "host").
		with([]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}).
		only("Services come from an API server")
	apiLimiter = define(Histogram, "rest_client_rate_limiter_duration_seconds",
		"Client side rate limiter latency in seconds. Broken down by verb, and host.", "verb", "host").
		with([]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}).
		only("Services come from an API server")
)

// client-go accepts hooks once per process; they count for the Metrics created last.
var (
	clientOnce sync.Once
	clientOf   atomic.Pointer[Metrics]
)

// watchClient registers the hooks that count requests to the API server.
func (m *Metrics) watchClient() {
	clientOf.Store(m)
	clientOnce.Do(func() {
		clientgo.Register(clientgo.RegisterOpts{
			RequestLatency: latency{apiLatency}, RateLimiterLatency: latency{apiLimiter},
			RequestResult: results{},
		})
	})
}

type latency struct{ def *Definition }

// Observe is part of client-go's metrics.LatencyMetric.
func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	clientOf.Load().observe(l.def, took, verb, u.Host)
}

type results struct{}

// Increment is part of client-go's metrics.ResultMetric.
func (results) Increment(_ context.Context, code, method, host string) {
	clientOf.Load().count(apiRequests, 1, code, method, host)
}
