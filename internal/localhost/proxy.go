package localhost

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Limits bound what processes of the node can make a Proxy hold. A connection takes two descriptors and at
// most two buffers.
type Limits struct {
	Listeners   int `json:"listeners"`
	Connections int `json:"connections"`         // at a time
	PerPort     int `json:"connectionsEachPort"` // of one Service port
}

// DefaultLimits hold for all NodePorts of the default range, and for 32 MiB in buffers.
var DefaultLimits = Limits{Listeners: 4096, Connections: 1024, PerPort: 256}

// maxDescriptors returns how many descriptors this process may have open. The Go runtime has raised the limit
// to the hard one.
func maxDescriptors() (n int) {
	text, _ := os.ReadFile("/proc/self/limits")
	_, limit, _ := strings.Cut(string(text), "Max open files")
	if _, err := fmt.Sscan(limit, &n); err != nil { // unlimited, or not Linux
		n = math.MaxInt32
	}
	return n
}

// Options are the settings of a Proxy.
type Options struct {
	Limits Limits // the zero Limits: DefaultLimits, within the limit of open files
	// OnFailure, if not nil, is called when a NodePort cannot be listened on that could before, or is new. It
	// is called on the goroutine of Run.
	OnFailure func(name k8s.PortName, text string)
	Log       *slog.Logger
}

// Proxy listens at [::1] for each TCP NodePort with a frontend there and an endpoint. Make it with New and
// start Run once; the other methods may be called before, after and meanwhile, from any goroutine.
type Proxy struct {
	opts    Options
	news    dataplane.Signal // has a token while a port is to be opened
	serving sync.WaitGroup   // one for each goroutine of listeners and connections

	mu      sync.Mutex // protects all below; never held while listening, connecting or copying
	ports   map[k8s.PortName]*port
	figures Figures // but what Figures counts itself
	ended   bool    // Run has ended
}

// Figures are the Proxy's counts.
type Figures struct {
	Limits
	Listening int `json:"listening"`
	// Unserved are the NodePorts that cannot be listened on, and Opening those not yet tried.
	Unserved int `json:"unserved"`
	Opening  int `json:"opening"`
	// Open are the connections, and Buffers the bytes that their buffers hold at most.
	Open    int `json:"open"`
	Buffers int `json:"bufferBytes"`
	// Failures counts attempts to listen that failed.
	Failures uint64 `json:"failures"`
	// Results counts connections by what became of them.
	Results map[string]uint64 `json:"results"`
}

// The Results.
const (
	connected     = "connected"  // to an endpoint
	unanswered    = "unanswered" // no endpoint accepted it
	tooManyOfPort = "limit_service_port"
	tooMany       = "limit_node"
)

// port is a NodePort of one Service port. Proxy.mu protects what changes.
type port struct {
	name      k8s.PortName
	number    uint16
	endpoints []k8s.Endpoint // not empty
	gone      bool           // it is no longer wanted: close was called

	listener net.Listener // nil: nkp does not listen
	conns    map[*connection]struct{}

	err   error         // why nkp cannot listen; nil: it has not tried, or listens
	free  bool          // the last attempt found the port free that another process had
	pause time.Duration // before the next attempt; 0: none has failed
	due   time.Time     // of the next attempt

	affinity time.Duration
	pinned   netip.AddrPort // with affinity: the endpoint of the last connection, which began at pinnedAt
	pinnedAt time.Time
}

// within returns limits that leave half of a number of descriptors to the rest of nkp: in the same
// proportion, if they must be lower.
func (l Limits) within(descriptors int) Limits {
	need, most := l.Listeners+2*l.Connections, descriptors/2
	if need <= most {
		return l
	}
	part := func(n int) int { return max(1, n*most/need) }
	return Limits{part(l.Listeners), part(l.Connections), part(l.PerPort)}
}

// New returns a Proxy that listens nowhere yet.
func New(o Options) *Proxy {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits.within(maxDescriptors())
	}
	return &Proxy{
		opts: o, news: dataplane.NewSignal(),
		ports: map[k8s.PortName]*port{},
		figures: Figures{Limits: o.Limits, Results: map[string]uint64{
			connected: 0, unanswered: 0, tooManyOfPort: 0, tooMany: 0,
		}},
	}
}

// Update takes the model's changes. New endpoints are in force when it returns, and listeners that are no
// longer wanted are closed, with their connections; Run opens new ones soon after. It does not block.
func (p *Proxy) Update(m *k8s.Model, changes k8s.Changes) {
	router := k8s.Router{Detector: m.Detector, NodeIPs: m.Node.IPs, Loopback: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}

	for name, sp := range changes.Ports {
		if name.Family != k8s.IPv6 || name.Protocol != v1.ProtocolTCP {
			continue
		}
		number, endpoints := wanted(&router, sp)
		now := p.ports[name]
		if now != nil && (now.number != number || len(endpoints) == 0) {
			now.close()
			delete(p.ports, name)
			now = nil
			p.news.Notify() // the limit of listeners may leave room now
		}
		if len(endpoints) == 0 {
			continue
		}

		if now == nil {
			now = &port{name: name, number: number, conns: map[*connection]struct{}{}}
			p.ports[name] = now
			p.news.Notify()
		}
		now.endpoints, now.affinity = endpoints, time.Duration(sp.AffinitySeconds)*time.Second
		if sp.Removed != nil && !sp.Removed.Unknown {
			for c := range now.conns {
				if !slices.Contains(sp.Serving, c.endpoint) {
					c.cancel()
				}
			}
		}
	}
}

// wanted returns the number of a Service port's NodePort at [::1] and the endpoints for this node's own
// connections; none: nkp must not listen there.
func wanted(router *k8s.Router, sp *k8s.ServicePort) (number uint16, endpoints []k8s.Endpoint) {
	if sp == nil {
		return 0, nil
	}
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		if f.Type == k8s.NodePort && f.Address == k8s.Loopback6 && router.Serves(f) {
			return f.Port, sp.Endpoints(router.Routes(sp, f)[k8s.ThisNode].Set)
		}
	}
	return 0, nil
}

// close closes the listener and resets the connections, as kube-proxy does. Proxy.mu must be held.
func (q *port) close() {
	q.gone = true
	if q.listener != nil {
		_ = q.listener.Close()
		q.listener = nil
	}
	for c := range q.conns {
		c.cancel()
	}
}

// choose returns the endpoint of a new connection. All clients are this node, so that session affinity has
// one endpoint for all of them. Proxy.mu must be held.
func (q *port) choose() netip.AddrPort {
	now, all := time.Now(), 0
	for _, e := range q.endpoints {
		if e.Addr == q.pinned && now.Sub(q.pinnedAt) < q.affinity {
			q.pinnedAt = now
			return q.pinned
		}
		all += e.Weight()
	}

	at, chosen := rand.IntN(all), 0
	for ; at >= q.endpoints[chosen].Weight(); chosen++ {
		at -= q.endpoints[chosen].Weight()
	}
	q.pinned, q.pinnedAt = q.endpoints[chosen].Addr, now
	return q.pinned
}

// Figures returns the Proxy's counts.
func (p *Proxy) Figures() Figures {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.figures
	f.Results = maps.Clone(f.Results)
	for _, q := range p.ports {
		switch {
		case q.listener != nil:
			f.Listening++
		case q.err != nil:
			f.Unserved++
		default:
			f.Opening++
		}
	}
	f.Buffers = 2 * bufferSize * f.Open
	return f
}

// Problems returns why Service ports cannot be listened for, by their names. A nil Proxy has none.
func (p *Proxy) Problems() map[k8s.PortName]string {
	all := map[k8s.PortName]string{}
	if p == nil {
		return all
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, q := range p.ports {
		if q.err != nil {
			all[n] = q.text()
		}
	}
	return all
}

// Opening reports whether there are ports that Run has not tried to listen on yet. A nil Proxy has none.
func (p *Proxy) Opening() bool { return p != nil && p.Figures().Opening > 0 }

// text says why the port is not listened on. Proxy.mu must be held.
func (q *port) text() string {
	return fmt.Sprintf("NodePort %d is not served at [::1]: %v", q.number, q.err)
}

// Run listens until the context ends. Then it closes all listeners, resets the connections, and returns nil.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.serving.Wait()
	defer p.closeAll()
	again := time.NewTicker(retryFirst / 3)
	defer again.Stop()
	for {
		p.open(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-p.news:
		case <-again.C:
		}
	}
}

// closeAll closes every port.
func (p *Proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.ports {
		q.close()
	}
	clear(p.ports)
	p.ended = true
}
