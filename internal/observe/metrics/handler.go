package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// paths is a Handler that, like kube-proxy's, matches paths exactly and a few by prefix. It does not clean or
// redirect them.
type paths struct {
	exact  map[string]http.HandlerFunc
	prefix map[string]http.HandlerFunc
}

// ServeHTTP is part of http.Handler.
func (p *paths) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Errors are ignored: a ResponseWriter without support for deadlines, as in tests, needs none.
	if deadlines := http.NewResponseController(w); strings.HasPrefix(r.URL.Path, pprofPrefix) {
		// a profile takes as long as requested; a read deadline would end its context
		_ = deadlines.SetReadDeadline(time.Time{})
	} else {
		_ = deadlines.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	if h := p.exact[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	for prefix, h := range p.prefix {
		if strings.HasPrefix(r.URL.Path, prefix) {
			h(w, r)
			return
		}
	}
	http.NotFound(w, r)
}

// Handle serves one path.
func (p *paths) Handle(path string, h http.Handler) { p.exact[path] = h.ServeHTTP }

// newHandler serves what kube-proxy serves on its metrics port.
func newHandler(m *Metrics, o *ServerOptions) http.Handler {
	p := &paths{exact: map[string]http.HandlerFunc{}, prefix: map[string]http.HandlerFunc{}}
	p.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ProcessStartTime: m.progress.started,
		ErrorHandling:    promhttp.ContinueOnError, // serve the metrics that can be collected
	}))
	slis.SLIMetricsWithReset{}.Install(p)
	p.exact["/healthz"] = healthz
	p.exact["/healthz/ping"] = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }
	p.exact["/proxyMode"] = func(w http.ResponseWriter, _ *http.Request) {
		plainText(w, http.StatusOK, o.ProxyMode)
	}
	p.exact["/configz"] = configz(o.Config)
	if o.Profiling {
		addProfiling(p, o)
	}
	return p
}

// configz shows the configuration in force.
func configz(config func() map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		groups := map[string]any{}
		if config != nil {
			groups = config()
		}
		body, err := json.Marshal(groups)
		if err != nil {
			http.Error(w, fmt.Sprintf("error marshaling json: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write(body)
	}
}

func plainText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	io.WriteString(w, text)
}
