package metrics

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// slis are the service level indicators of Kubernetes' components (component-base, metrics/prometheus/slis):
// how the health checks of /healthz went. Here, as in kube-proxy, there is one, ping, which always goes well;
// /healthz of port 10256 tells more.
type slis struct {
	registry *prometheus.Registry
	last     *prometheus.GaugeVec
	total    *prometheus.CounterVec
	start    *prometheus.GaugeVec
	handler  http.Handler
}

const check = "ping"

func newSLIs(started time.Time) *slis {
	s := &slis{
		registry: prometheus.NewRegistry(),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck",
			Help: "[STABLE] This metric records the result of a single healthcheck.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] This metric records the results of all healthcheck.",
		}, []string{"name", "type", "status"}),
		start: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "process_start_time_seconds",
			Help: "[ALPHA] Start time of the process since unix epoch in seconds.",
		}, nil),
	}
	s.registry.MustRegister(s.last, s.total, s.start)
	s.start.WithLabelValues().Set(unix(started))
	s.handler = promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{ProcessStartTime: started})
	return s
}

// serve answers /metrics/slis; DELETE resets all metrics.
func (s *slis) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		s.last.Reset()
		s.total.Reset()
		s.start.Reset()
		io.WriteString(w, "metrics reset\n")
		return
	}
	s.handler.ServeHTTP(w, r)
}

// healthz answers /healthz. With ?verbose it lists the checks one by one; ?exclude skips some.
func (s *slis) healthz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	unknown := slices.Compact(slices.Sorted(slices.Values(query["exclude"])))
	at := slices.Index(unknown, check)
	line := "[+]" + check + " ok\n"
	if at >= 0 {
		unknown = slices.Delete(unknown, at, at+1)
		line = "[+]" + check + " excluded: ok\n"
	} else {
		s.last.WithLabelValues(check, "healthz").Set(1)
		s.total.WithLabelValues(check, "healthz", "success").Inc()
	}
	if !query.Has("verbose") {
		plainText(w, http.StatusOK, "ok")
		return
	}
	if len(unknown) > 0 {
		quoted := make([]string, len(unknown))
		for i, name := range unknown {
			quoted[i] = fmt.Sprintf("%q", name)
		}
		line += "warn: some health checks cannot be excluded: no matches for " +
			strings.Join(quoted, ",") + "\n"
	}
	plainText(w, http.StatusOK, line+"healthz check passed\n")
}
