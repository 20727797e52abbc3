package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// bindRetry is how often an address that cannot be listened on is tried again, as in kube-proxy.
const bindRetry = 5 * time.Second

// report is the body of /healthz and /livez, in the order in which kube-proxy writes it. kube-proxy has no Stuck.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // in /healthz only
	Healthy      bool                    `json:"healthy"`                // without the node
	Status       map[string]familyStatus `json:"status,omitempty"`       // by family: IPv4, IPv6
	Stuck        []dataplane.State       `json:"stuck,omitempty"`        // loops without progress
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Run listens and serves until the context ends, and returns nil then. If it cannot listen, it retries every
// few seconds, or, with HardFail, returns the error.
func (p *Proxy) Run(ctx context.Context) error {
	if p.opts.Addr == "" {
		return nil
	}
	var last string
	for {
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("healthz at %s: %w", p.opts.Addr, err)
		if p.opts.HardFail {
			return err
		}
		if err.Error() != last {
			p.opts.Log.Error("cannot serve /healthz and /livez; trying again", "error", err, "every", bindRetry)
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(bindRetry):
		}
	}
}

// serve returns when the context ends or listening fails.
func (p *Proxy) serve(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", p.opts.Addr) // 0.0.0.0 listens in both families, as kube-proxy does
	if err != nil {
		return plain(err)
	}
	p.setAddr(l.Addr().String())
	defer p.setAddr("")
	p.opts.Log.Info("serving /healthz and /livez", "address", l.Addr())
	server := p.guard.Server(p.Handler())
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (p *Proxy) setAddr(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr = addr
}

// Handler serves /healthz and /livez, and nothing else.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := p.NodeEligible()
		p.answer(w, "/healthz", &eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, "/livez", nil) })
	return mux
}

// answer writes one report; nodeEligible is nil where the node does not matter.
func (p *Proxy) answer(w http.ResponseWriter, path string, nodeEligible *bool) {
	now := p.opts.Clock()
	r := report{CurrentTime: now, NodeEligible: nodeEligible}
	r.Status, r.Healthy = p.state(now)
	r.Stuck = p.opts.Stuck()
	r.Healthy = r.Healthy && len(r.Stuck) == 0
	code := http.StatusOK
	if !r.Healthy || nodeEligible != nil && !*nodeEligible {
		code = http.StatusServiceUnavailable
		for _, s := range r.Status {
			if s.LastUpdated.After(r.LastUpdated) {
				r.LastUpdated = s.LastUpdated
			}
		}
	} else {
		r.LastUpdated = now // probes that look for a recent time are older than the status code
	}
	body, err := json.Marshal(r)
	if err != nil {
		panic(err) // times after the year 9999
	}
	jsonHeader(w)
	w.WriteHeader(code)
	w.Write(body)
	if p.opts.OnResponse != nil {
		p.opts.OnResponse(path, code)
	}
}
