package fallback

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/k8s"
)

// open opens the tables of each family. While they are busy (another process holds the xtables lock) it tries again, until the
// context ends.
func (p *Plane) open(ctx context.Context) ([]*worker, error) {
	for {
		workers, err := p.tryOpen(ctx)
		if !errors.Is(err, xtables.ErrBusy) || ctx.Err() != nil {
			return workers, err
		}
		p.log.Warn("cannot look at iptables now; trying again", "in", retryMin, "error", err)
		for f := range p.inbox {
			p.report(f, func(s *FamilyStatus) { s.Failures++; s.LastError = err.Error() })
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryMin):
		}
	}
}

// tryOpen chooses the back end, opens the tables of each family and prepares the kernel.
func (p *Plane) tryOpen(ctx context.Context) ([]*worker, error) {
	choice, err := xtables.Choose(ctx, xtables.Backend(p.opts.Backend))
	if err != nil {
		return nil, err
	}
	p.prepareKernel()
	limits := legacyLimits
	if choice.Backend == xtables.NFT {
		limits = nftLimits
	}
	var workers []*worker
	var problems []error
	for _, f := range p.opts.families() {
		t, err := xtables.Open(ctx, choice.Backend, f)
		if errors.Is(err, xtables.ErrBusy) || ctx.Err() != nil {
			return nil, err
		} else if err != nil {
			problems = append(problems, err)
			continue
		}
		p.mu.Lock()
		p.opts.RandomFully = t.RandomFully
		p.status.Backend, p.status.Reason, p.status.Version = string(choice.Backend), choice.Reason, t.Version
		p.status.RandomFully = t.RandomFully
		p.mu.Unlock()
		w := newWorker(f, &p.opts, marking{t, p.life[f]}, limits, p.inbox[f])
		w.life = p.life[f]
		w.backend = string(choice.Backend)
		w.report = func(change func(*FamilyStatus)) { p.report(f, change) }
		w.forget = func(s *staleSet) (int, error) { return forgetUDP(f, s) }
		workers = append(workers, w)
	}
	if len(workers) == 0 || len(problems) > 0 && len(p.opts.Families) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, err := range problems {
		p.log.Warn("a family is not served", "error", err)
	}
	p.mu.Lock()
	for _, f := range p.opts.families() {
		if !containsFamily(workers, f) {
			delete(p.families, f)
		}
	}
	p.mu.Unlock()
	p.log.Info("Services are served by iptables", "backend", choice.Backend, "because", choice.Reason,
		"version", p.status.Version, "scope", p.opts.Scope)
	return workers, nil
}

func containsFamily(workers []*worker, f k8s.Family) bool {
	for _, w := range workers {
		if w.family == f {
			return true
		}
	}
	return false
}

// Kernel settings, below /proc/sys.
const (
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	tcpBeLiberal  = "net/netfilter/nf_conntrack_tcp_be_liberal"
)

// prepareKernel lets NodePorts work at 127.0.0.1, and looks how strict connection tracking is.
func (p *Plane) prepareKernel() {
	if v, err := sysctl(tcpBeLiberal); err == nil && v != "0" {
		p.mu.Lock()
		p.opts.KeepInvalid = true
		p.mu.Unlock()
		p.log.Info("packets that connection tracking finds invalid are not dropped", "because", tcpBeLiberal+" is set")
	}
	if !p.opts.LocalhostNodePorts {
		return
	}
	if v, err := sysctl(routeLocalnet); err == nil && v == "1" {
		return
	}
	if err := os.WriteFile("/proc/sys/"+routeLocalnet, []byte("1"), 0o644); err != nil {
		p.log.Warn("NodePorts do not work at 127.0.0.1; if nobody needs that, say so by --iptables-localhost-nodeports=false",
			"error", fmt.Errorf("set %s to 1: %w", routeLocalnet, err))
	}
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b)), err
}
