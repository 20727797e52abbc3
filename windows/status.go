package windows

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// Status is the part of the status that only this data plane has; `nkp status -o json` prints it.
type Status struct {
	Network     string       `json:"network"`
	NetworkType string       `json:"networkType,omitempty"`
	HNSVersion  string       `json:"hnsVersion,omitempty"` // "": not read yet
	Features    hns.Features `json:"features"`
	// ModifyInPlace reports whether load balancers are modified in place; else they are deleted and created.
	ModifyInPlace bool   `json:"modifyInPlace"`
	SourceVIP     string `json:"sourceVIP,omitempty"`
	// Notifies reports whether HNS notifies nkp of new and deleted networks; else nkp finds them at its next
	// regular check.
	Notifies bool `json:"notifies"`

	// Queued is when the model changed last, Begun and Synced when the last sync began and when one last went
	// through; a sync that went through may have failures. Busy is set while one is under way: HNS can hang.
	Queued time.Time     `json:"queued"`
	Begun  time.Time     `json:"begun"`
	Synced time.Time     `json:"synced"`
	Took   time.Duration `json:"took"` // ns
	Busy   bool          `json:"busy"`
	// InStep is set when HNS has all that is wanted. Otherwise Why says what is missing.
	InStep bool   `json:"inStep"`
	Why    string `json:"why,omitempty"`
	// Error is why the last sync did not go through; nothing was changed then. "": it did.
	Error    string    `json:"error,omitempty"`
	Failures []Failure `json:"failures"`
	// Waiting lists what another component has to do first.
	Waiting     []string               `json:"waiting"`
	Unsupported []plan.UnsupportedText `json:"unsupported"`
	// Warnings are about the node as a whole.
	Warnings []string `json:"warnings"`
	Objects  struct {
		Endpoints     int `json:"endpoints"`
		LoadBalancers int `json:"loadBalancers"`
		// Altered counts the objects that HNS stores differently than requested. nkp uses them as they are.
		Altered int `json:"altered"`
		// Foreign counts the foreign load balancers, which nkp leaves alone.
		Foreign int `json:"foreignLoadBalancers"`
		// StaleEndpoints are remote endpoints of other owners whose addresses no Service has,
		// StaleLoadBalancers the load balancers that send to them.
		StaleEndpoints     int `json:"staleEndpoints"`
		StaleLoadBalancers int `json:"staleLoadBalancers"`
	} `json:"objects"`
	// FreePortBlocks is counted every 5 minutes; nil: the last count failed, or there was none yet.
	FreePortBlocks *PortBlocks      `json:"freePortBlocks,omitempty"`
	Syncs          uint64           `json:"syncs"`
	SyncErrors     uint64           `json:"syncErrors"`
	Counts         reconcile.Counts `json:"counts"`
	// Calls are those into HNS, by name.
	Calls map[string]CallCount `json:"calls"`
	// Programming is the latency from the arrival of a change until HNS had it.
	Programming dataplane.Programming `json:"programming"`
}

// Failure is an object that HNS refused.
type Failure struct {
	Object  string    `json:"object"`
	Service string    `json:"service,omitempty"`
	Error   string    `json:"error"`
	RetryAt time.Time `json:"retryAt,omitzero"`
}

// Status returns the status of the data plane; its Detail is a *Status. It never waits for HNS.
func (p *Plane) Status(ctx context.Context) (dataplane.Status, error) {
	s := p.Detail()
	list, unsupported := p.status.problems()
	for _, u := range unsupported {
		n := noticeOf(u)
		n.Text = "not supported by HNS: " + n.Text
		list.Notices = append(list.Notices, n)
	}
	list.Warnings = s.Warnings
	list.InStep, list.Why, list.Programming, list.Detail = s.InStep, s.Why, s.Programming, &s
	return list, ctx.Err()
}

// Behind is part of dataplane.Plane. It does not wait.
func (p *Plane) Behind(_ context.Context, by time.Time, _ bool) string {
	if !p.runner.In.Waits(by) {
		return ""
	}
	return cmp.Or(p.status.get(p.opts.now()).Why, "HNS does not have all changes yet")
}

// warnings returns what nkp cannot do on this node, for any Services.
func (p *Plane) warnings() (list []string) {
	list = p.status.nodeWarnings()
	if v := p.status.version(); p.opts.EnableDSR && v != (hns.Version{}) && !hns.FeaturesOf(v).DSR {
		list = append(list, fmt.Sprintf("--enable-dsr has no effect: %v. "+
			"ClusterIPs are served without direct server return; "+
			"update Windows, or remove the flag", hns.Missing("DSR", "10.2", v)))
	}
	return list
}

// Detail returns the part of the status that only this data plane has. It never waits for HNS.
func (p *Plane) Detail() Status {
	s := p.status.get(p.opts.now())
	s.Calls, s.Warnings, s.Notifies = p.calls.get(), p.warnings(), p.watch.active.Load()
	return s
}

// statusRecord is the status as Run records it. It is safe for concurrent use.
type statusRecord struct {
	mu      sync.Mutex // protects all below; apart from the runner's lock, so that Status never waits for HNS
	s       Status
	v       hns.Version
	stale   reconcile.Stale
	ports   error                     // why the free ports could not be counted
	root    string                    // why health checks are not forwarded
	told    map[plan.Unsupported]bool // reasons that have been reported
	refused []dataplane.Refusal
	done    bool // every change received went through a sync
}

// update changes the record under its lock.
func (b *statusRecord) update(change func(*statusRecord)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// nodeWarnings returns the warnings about the host and about objects of other owners.
func (b *statusRecord) nodeWarnings() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := append([]string{}, b.s.FreePortBlocks.few()...)
	if n := len(b.stale.Endpoints); n > 0 {
		text := "HNS has remote endpoints of another owner whose addresses no Service has: " +
			dataplane.Some(3, b.stale.Endpoints)
		if len(b.stale.LoadBalancers) > 0 {
			text += fmt.Sprintf("; these load balancers send to them: %s "+
				"(--hns-take-over deletes what kube-proxy left)", dataplane.Some(3, b.stale.LoadBalancers))
		}
		list = append(list, text)
	}
	return list
}

// setPorts records the free port blocks, and returns warnings for the log that the count before had not.
func (b *statusRecord) setPorts(blocks PortBlocks, err error) (news []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, failed := b.s.FreePortBlocks.few(), b.ports != nil
	b.s.FreePortBlocks, b.ports = &blocks, err
	if err != nil {
		b.s.FreePortBlocks = nil
		if !failed {
			news = append(news, fmt.Sprintf("cannot count the free dynamic ports, so that nkp does not see whether "+
				"HNS runs out of them: %v", err))
		}
		return news
	}
	if now := blocks.few(); len(now) > len(before) {
		news = now
	}
	return news
}

// problems returns a Status with the refused objects, and the unsupported settings.
func (b *statusRecord) problems() (s dataplane.Status, unsupported []plan.Unsupported) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Refusals = slices.Clone(b.refused)
	return s, slices.SortedFunc(maps.Keys(b.told), plan.Unsupported.Compare)
}

// why returns why HNS is not in step; "": it is.
func (b *statusRecord) why(now time.Time) string {
	switch busy := now.Sub(b.s.Begun); {
	case b.s.Busy && busy >= time.Second:
		return fmt.Sprintf("a sync with HNS has not ended for %v", busy.Round(time.Second))
	case b.s.Error != "":
		return b.s.Error
	case !b.done:
		return "changes are not in HNS yet"
	case len(b.refused) > 0:
		return fmt.Sprintf("HNS does not take %s", dataplane.Count(len(b.refused), "object"))
	case len(b.s.Waiting) > 0:
		return dataplane.Count(len(b.s.Waiting), "object") + " not in HNS yet: waiting for the CNI plugin"
	}
	return ""
}

func (b *statusRecord) get(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.s
	s.Why = b.why(now)
	s.InStep = s.Why == ""
	s.Failures = append([]Failure{}, s.Failures...)
	s.Waiting = append([]string{}, s.Waiting...)
	if b.root != "" {
		s.Waiting = append(s.Waiting, b.root)
	}
	s.Unsupported = append([]plan.UnsupportedText{}, s.Unsupported...)
	return s
}

func (b *statusRecord) version() hns.Version {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.v
}

func (b *statusRecord) observed(f *plan.Facts, modify bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.s.NetworkType, b.s.ModifyInPlace, b.s.SourceVIP = f.Network.Type, modify, ""
	if f.SourceVIP.IsValid() {
		b.s.SourceVIP = f.SourceVIP.String()
	}
}

func (b *statusRecord) end(now time.Time, r reconcile.Result, c reconcile.Counts, err error) {
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
	b.refused, b.s.Failures = r.Refused, nil
	for _, f := range r.Refused {
		service := ""
		if f.Port != (k8s.PortName{}) {
			service = f.Port.String()
		}
		b.s.Failures = append(b.s.Failures, Failure{f.Object, service, f.Reason, f.RetryAt})
	}
	b.s.Waiting = r.Waiting

	b.stale = r.Stale
	o := &b.s.Objects
	o.Endpoints, o.LoadBalancers = r.Endpoints, r.LoadBalancers
	o.Altered, o.Foreign = r.Altered, r.Foreign
	o.StaleEndpoints, o.StaleLoadBalancers = len(r.Stale.Endpoints), len(r.Stale.LoadBalancers)
}

// unsupported records the list of unsupported settings and returns the new ones. One that disappears and
// recurs counts as new.
func (b *statusRecord) unsupported(list []plan.Unsupported) (news []plan.Unsupported) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := map[plan.Unsupported]bool{}
	b.s.Unsupported = nil
	for _, u := range list {
		now[u] = true
		b.s.Unsupported = append(b.s.Unsupported, u.Text())
		if !b.told[u] {
			news = append(news, u)
		}
	}
	b.told = now
	slices.SortFunc(news, plan.Unsupported.Compare)
	return news
}
