package windows

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/latency"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// Status is what the agent says of the data plane.
type Status struct {
	Network     string       `json:"network"`
	NetworkType string       `json:"networkType,omitempty"`
	HNSVersion  string       `json:"hnsVersion,omitempty"` // "": HNS has not told it yet
	Features    hns.Features `json:"features"`
	// ModifyInPlace tells whether load balancers are modified in place; else they are deleted and created.
	ModifyInPlace bool   `json:"modifyInPlace"`
	SourceVIP     string `json:"sourceVIP,omitempty"`

	// Queued is when the model changed last, Begun and Synced when the last sync began and when one last went through; a sync
	// that went through may have failures. Busy is set while one is under way: HNS can hang.
	Queued time.Time     `json:"queued"`
	Begun  time.Time     `json:"begun"`
	Synced time.Time     `json:"synced"`
	Took   time.Duration `json:"took"` // ns
	Busy   bool          `json:"busy"`
	// Error is why the last sync did not go through; nothing was changed then. "": it did.
	Error    string    `json:"error,omitempty"`
	Failures []Failure `json:"failures"`
	// Waiting is what somebody else has to do first.
	Waiting     []string               `json:"waiting"`
	Unsupported []plan.UnsupportedText `json:"unsupported"`
	Objects     struct {
		Endpoints     int `json:"endpoints"`
		LoadBalancers int `json:"loadBalancers"`
		// Foreign counts the load balancers of others, which nkp leaves alone.
		Foreign int `json:"foreignLoadBalancers"`
	} `json:"objects"`
	Syncs      uint64           `json:"syncs"`
	SyncErrors uint64           `json:"syncErrors"`
	Counts     reconcile.Counts `json:"counts"`
	// Calls are those into HNS, by name.
	Calls map[string]CallCount `json:"calls"`
	// Programming is from the arrival of a change until HNS had it.
	Programming latency.Programming `json:"programming"`
}

// Failure is an object that HNS did not take.
type Failure struct {
	Object  string    `json:"object"`
	Service string    `json:"service,omitempty"`
	Error   string    `json:"error"`
	RetryAt time.Time `json:"retryAt,omitzero"`
}

// Status gives the state of the data plane. It never waits for HNS.
func (p *Plane) Status() Status {
	s := p.board.get()
	s.Calls = p.calls.get()
	return s
}

// board is where Run writes the status down.
type board struct {
	mu      sync.Mutex // protects all below; apart from Plane.mu, so that Status never waits for HNS
	s       Status
	v       hns.Version
	changes latency.Recent
	root    string                    // why health checks are not forwarded
	told    map[plan.Unsupported]bool // reasons that have been reported
}

func (b *board) init(network string) {
	b.s.Network = network
	b.told = map[plan.Unsupported]bool{}
}

func (b *board) get() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.s
	s.Programming = b.changes.Programming()
	s.Failures = append([]Failure{}, s.Failures...)
	s.Waiting = append([]string{}, s.Waiting...)
	if b.root != "" {
		s.Waiting = append(s.Waiting, b.root)
	}
	s.Unsupported = append([]plan.UnsupportedText{}, s.Unsupported...)
	return s
}

func (b *board) version() hns.Version {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.v
}

func (b *board) setVersion(v hns.Version) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.v, b.s.HNSVersion, b.s.Features = v, v.String(), hns.FeaturesOf(v)
}

func (b *board) setRoot(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.root = why
}

func (b *board) queued(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.Queued = now
}

// programmed notes that everything that came is in HNS now; since is when the oldest of it arrived, zero: nothing came.
func (b *board) programmed(since time.Time) {
	if since.IsZero() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes.Add(time.Since(since))
}

func (b *board) begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.Begun, b.s.Busy = now, true
}

func (b *board) observed(f *plan.Facts, modify bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.NetworkType, b.s.ModifyInPlace, b.s.SourceVIP = f.Network.Type, modify, ""
	if f.Network.Overlay() {
		b.s.SourceVIP = f.SourceVIP.String()
	}
}

func (b *board) end(now time.Time, r reconcile.Result, c reconcile.Counts, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.Busy, b.s.Took, b.s.Counts = false, now.Sub(b.s.Begun), c
	b.s.Syncs++
	if err != nil {
		b.s.SyncErrors++
		b.s.Error = err.Error()
		return
	}
	b.s.Synced, b.s.Error = now, ""
	b.s.Failures = nil
	for _, f := range r.Failures {
		b.s.Failures = append(b.s.Failures, Failure{f.Object, f.Service, f.Text, f.RetryAt})
	}
	b.s.Waiting = r.Waiting
	b.s.Objects.Endpoints, b.s.Objects.LoadBalancers, b.s.Objects.Foreign = r.Endpoints, r.LoadBalancers, r.Foreign
}

// unsupported takes what cannot be done now and gives what is new of it. What goes away is told again when it comes back.
func (b *board) unsupported(list []plan.Unsupported) (news []plan.Unsupported) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := map[plan.Unsupported]bool{}
	b.s.Unsupported = nil
	for _, u := range list {
		now[u] = true
		b.s.Unsupported = append(b.s.Unsupported, plan.UnsupportedText{Service: u.Service.String(), Reason: u.Reason})
		if !b.told[u] {
			news = append(news, u)
		}
	}
	b.told = now
	slices.SortFunc(news, func(x, y plan.Unsupported) int {
		return cmp.Or(x.Service.Compare(y.Service), cmp.Compare(x.Reason, y.Reason))
	})
	return news
}
