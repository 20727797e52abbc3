package health

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/httpguard"
	"github.com/nkp-proxy/nkp/k8s"
)

// limits of /healthz and /livez, and of all health check node ports together. An answer is a few hundred
// bytes.
var limits = httpguard.Limits{Conns: 512, Serving: 512, Answer: 10 * time.Second}

// ProxyOptions are the settings of Proxy.
type ProxyOptions struct {
	// Addr is the address to listen on, 0.0.0.0:10256 in kube-proxy. "": Run does not listen. Port 0: any
	// that is free.
	Addr string
	// HardFail makes Run return an error if it cannot listen (kube-proxy's bindAddressHardFail); else it
	// tries again.
	HardFail bool
	// Timeout is how long changes may wait until they are programmed: in kube-proxy, twice the sync period
	// (by default 30 s). 0: a minute.
	Timeout time.Duration
	// Stuck returns the loops, the goroutines of data planes and agent that process changes, that make no
	// progress (dataplane.Watch); nil: none is watched. It must not wait.
	Stuck func() []dataplane.State
	// Clock returns the time; nil: time.Now.
	Clock func() time.Time
	// OnResponse counts answers by path, /healthz or /livez, and status code, on any goroutine. nil: they are
	// not counted.
	OnResponse func(path string, code int)
	Log        *slog.Logger
}

// Proxy tracks whether nkp programs changes in time and whether its loops make progress, and serves that as
// /healthz and /livez. Make it with NewProxy; all methods may be called from any goroutine, Run once.
//
// It differs from kube-proxy's in two points. Changes that are pending since the start, because not even the
// first programming works, make it unhealthy, too: kube-proxy stays healthy then. So does a loop that
// makes no progress (ProxyOptions.Stuck), even if no change is pending.
type Proxy struct {
	httpguard.Listener
	opts ProxyOptions

	mu       sync.Mutex // protects all below
	families map[k8s.Family]*familyHealth
	bypassed bool            // see SetBypassed
	faults   map[string]bool // see SetDataPath
	known    bool            // there is a Node object
	refused  string          // why the node is not eligible
}

// familyHealth is what is known of one family.
type familyHealth struct {
	updated time.Time // zero: never
	queued  time.Time // when the oldest change that is not programmed came; zero: there is none
}

// NewProxy returns a Proxy that is healthy and whose node is not known.
func NewProxy(opts ProxyOptions) *Proxy {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Stuck == nil {
		opts.Stuck = func() []dataplane.State { return nil }
	}
	if opts.Timeout == 0 {
		opts.Timeout = time.Minute
	}
	p := &Proxy{opts: opts, families: map[k8s.Family]*familyHealth{}, faults: map[string]bool{}}
	p.Listener = httpguard.Listener{Serves: "/healthz and /livez", At: opts.Addr, HardFail: opts.HardFail,
		Guard: httpguard.New(limits, opts.Log), Handler: p.handler()}
	return p
}

// Queued records that there are changes to program in these families.
func (p *Proxy) Queued(families ...k8s.Family) {
	now := p.opts.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range families {
		if h := p.family(f); h.queued.IsZero() {
			h.queued = now
		}
	}
}

// Updated records that all changes are programmed in these families.
func (p *Proxy) Updated(families ...k8s.Family) {
	now := p.opts.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range families {
		h := p.family(f)
		h.updated, h.queued = now, time.Time{}
	}
}

// family is called with the lock held.
func (p *Proxy) family(f k8s.Family) *familyHealth {
	h := p.families[f]
	if h == nil {
		h = &familyHealth{}
		p.families[f] = h
	}
	return h
}

// SetNode sets whether load balancers may send new traffic to the node.
func (p *Proxy) SetNode(node k8s.Node) {
	p.mu.Lock()
	before := p.refused
	p.known, p.refused = node.Known, node.NotEligible
	p.mu.Unlock()
	switch {
	case node.NotEligible == before:
	case node.NotEligible != "":
		p.opts.Log.Info("/healthz tells load balancers to send no new traffic here",
			"node", node.Name, "reason", node.NotEligible)
	default:
		p.opts.Log.Info("/healthz lets load balancers send new traffic here again", "node", node.Name)
	}
}

// Healthy reports whether no change in any family has been pending for Timeout or longer, no loop is stuck,
// and packets do not go past what is programmed. It ignores the node.
func (p *Proxy) Healthy() bool {
	_, healthy := p.state(p.opts.Clock())
	return healthy && len(p.opts.Stuck()) == 0 && !p.isBypassed()
}

// SetBypassed sets whether packets go past everything that is programmed. It makes /healthz and Healthy
// unhealthy and leaves /livez alone, because a restart of nkp does not help.
func (p *Proxy) SetBypassed(bypassed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bypassed = bypassed
}

// SetDataPath sets whether a path of Service packets has a fault. While any has one, /healthz and Healthy are
// unhealthy, and /livez is left alone.
func (p *Proxy) SetDataPath(path string, fault bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fault {
		p.faults[path] = true
	} else {
		delete(p.faults, path)
	}
}

func (p *Proxy) isBypassed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bypassed || len(p.faults) > 0
}

// InStep reports whether every family is programmed without pending changes, and there is at least one. It
// ignores the loops.
func (p *Proxy) InStep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.families {
		if h.updated.IsZero() || !h.queued.IsZero() {
			return false
		}
	}
	return len(p.families) > 0
}

// NodeEligible reports whether the node may get new traffic: it is known, not being deleted, and the cluster
// autoscaler has not marked it.
func (p *Proxy) NodeEligible() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known && p.refused == ""
}

// state returns what is known of each family, and whether all is well.
func (p *Proxy) state(now time.Time) (status map[string]familyStatus, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	status, healthy = map[string]familyStatus{}, true
	for f, h := range p.families {
		ok := h.queued.IsZero() || now.Sub(h.queued) < p.opts.Timeout
		healthy = healthy && ok
		if !h.updated.IsZero() || !ok {
			status[f.String()] = familyStatus{LastUpdated: h.updated, Healthy: ok}
		}
	}
	return status, healthy
}
