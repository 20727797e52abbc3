package metrics

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
)

// ServerOptions are the settings of a Server.
type ServerOptions struct {
	// Addr is the address to listen on, 127.0.0.1:10249 in kube-proxy. "": Run does not listen. Port 0: any
	// that is free.
	Addr string
	// HardFail makes Run return an error if it cannot listen (kube-proxy's bindAddressHardFail); else it
	// tries again.
	HardFail bool
	// OnFailure, if set, is called once for each reason why it cannot listen. It must not block.
	OnFailure func(error)
	// TLS serves HTTPS; nil: plain HTTP.
	TLS *tls.Config
	// Protect, if set, returns a handler that serves permitted requests only. It calls the function with the
	// reason of each refusal.
	Protect func(http.Handler, func(reason string)) http.Handler
	// Profiling adds /debug/pprof and /debug/flags/v.
	Profiling bool
	// ProxyMode is the answer of /proxyMode.
	ProxyMode string
	// Config returns the configurations for /configz by their group, as values that can be encoded as JSON.
	// nil: none.
	Config func() map[string]any
	// SetVerbosity changes how much is logged, by klog's number, for /debug/flags/v. nil: that path does not
	// exist.
	SetVerbosity func(level uint32)
	Log          *slog.Logger
}

// answerTimeout is how long an answer may take, except for profiles, which take as long as requested.
const answerTimeout = 30 * time.Second

// limits of all clients. A scrape of 10,000 Services takes some 10 MB while it is being answered.
var limits = httpguard.Limits{Conns: 512, Serving: 32}

// Server serves Metrics and the other paths of kube-proxy's metrics port.
type Server = httpguard.Listener

// NewServer returns a Server for the Metrics.
func NewServer(m *Metrics, o ServerOptions) *Server {
	h := newHandler(m, &o)
	if o.Protect != nil {
		h = o.Protect(h, func(reason string) { m.count(refusedRequests, 1, reason) })
	}
	return &Server{Serves: "metrics", At: o.Addr, HardFail: o.HardFail, OnFailure: o.OnFailure,
		Guard: httpguard.New(limits, o.Log), Handler: h, TLS: o.TLS}
}
