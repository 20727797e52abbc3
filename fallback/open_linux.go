package fallback

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/k8s"
)

// open opens the tables of each family. While they are busy (another process holds the xtables lock) it tries again, until the
// context ends.
func (p *Plane) open(ctx context.Context) ([]familyWorker, error) {
	if p.opts.NFTables {
		return p.openNFT()
	}
	for {
		workers, err := p.tryOpen(ctx)
		if !errors.Is(err, restore.ErrBusy) || ctx.Err() != nil {
			return workers, err
		}
		p.log.Warn("cannot read the iptables tables now; retrying", "in", retryMin, "error", err)
		for f := range p.inbox {
			p.report(f, func(s *FamilyStatus) { s.failed(err) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryMin):
		}
	}
}

// tryOpen chooses the back end, and opens the tables of each family.
func (p *Plane) tryOpen(ctx context.Context) ([]familyWorker, error) {
	choice, err := restore.Choose(ctx, restore.Backend(p.opts.Backend))
	if err != nil {
		return nil, err
	}
	p.lookAtKernel()
	limits := legacyLimits
	if choice.Backend == restore.NFT {
		limits = nftLimits
	}
	var workers []familyWorker
	opened := map[k8s.Family]bool{}
	var problems []error
	for _, f := range p.opts.families() {
		t, err := restore.Open(ctx, choice.Backend, f)
		if errors.Is(err, restore.ErrBusy) || ctx.Err() != nil {
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
		w := newWorker(f, &p.opts, marking{t, p.loops[f]}, limits, p.inbox[f])
		w.kernel.loop = p.loops[f]
		w.kernel.backend = string(choice.Backend)
		w.kernel.report = func(change func(*FamilyStatus)) { p.report(f, change) }
		w.stale.forget = func(s *staleSet) (int, error) { return conntrack.Forget(ctx, f, 0, s.stale) } // other zones are Open vSwitch's
		if f == k8s.IPv4 {
			w.localnet.setting = routeLocalnet{}
		}
		workers = append(workers, w)
		opened[f] = true
	}
	if len(workers) == 0 || len(problems) > 0 && len(p.opts.Families) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, err := range problems {
		p.log.Warn("no iptables for an address family: its Services are not served", "error", err)
	}
	for _, f := range p.opts.families() {
		if !opened[f] {
			p.drop(f)
		}
	}
	p.log.Info("Services are served by iptables", "backend", choice.Backend, "because", choice.Reason,
		"version", p.status.Version, "scope", p.opts.Scope)
	return workers, nil
}

// tcpBeLiberal is a kernel setting, below /proc/sys.
const tcpBeLiberal = "net/netfilter/nf_conntrack_tcp_be_liberal"

// lookAtKernel reads how strict connection tracking is about TCP windows.
func (p *Plane) lookAtKernel() {
	if isLiberal() {
		p.mu.Lock()
		p.opts.KeepInvalid = true
		p.mu.Unlock()
		p.log.Info("packets in conntrack state INVALID are not dropped", "because", tcpBeLiberal+" is set")
	}
}

// isLiberal reports whether tcpBeLiberal is set.
func isLiberal() bool {
	v, err := sysctl(tcpBeLiberal)
	return err == nil && v != "0"
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b)), err
}

// routeLocalnet is the kernel setting net.ipv4.conf.all.route_localnet of this network namespace.
type routeLocalnet struct{}

// localnetFiles are the paths to write it through: in a container /proc/sys is read-only, but a volume may have this one file.
var localnetFiles = []string{"/proc/sys/net/ipv4/conf/all/route_localnet", "/host/proc/sys/net/ipv4/conf/all/route_localnet"}

func (routeLocalnet) on() (bool, error) {
	v, err := sysctl("net/ipv4/conf/all/route_localnet")
	return v != "" && v != "0", err
}

// set writes the setting. The error is that of the first file.
func (routeLocalnet) set(on bool) (err error) {
	value := map[bool]string{true: "1", false: "0"}[on]
	for _, file := range localnetFiles {
		f, problem := os.OpenFile(file, os.O_WRONLY, 0)
		if problem == nil {
			_, problem = f.WriteString(value)
			_ = f.Close()
		}
		if problem == nil {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("set net.ipv4.conf.all.route_localnet to %s: %w", value, problem)
		}
	}
	return err
}
