package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// Options are the settings of a self-test.
type Options struct {
	NKP string // the version of nkp, for the report
	// NetworkType is the type of the network to make: Internal, NAT, L2Bridge or Overlay.
	NetworkType string
	// Adapter is the network adapter of an L2Bridge or Overlay. HNS puts a switch on it, which breaks its
	// connections for seconds.
	Adapter string
	Host    *Host
}

// Check returns an error if the options do not fit together.
func (o *Options) Check() error {
	binds, known := networkTypes[o.NetworkType]
	switch {
	case !known:
		return fmt.Errorf("--network-type %q is none of %v", o.NetworkType, slices.Sorted(maps.Keys(networkTypes)))
	case binds && o.Adapter == "":
		return fmt.Errorf("--network-type %s needs --adapter: the network adapter that HNS puts a switch on "+
			"(Get-NetAdapter). Its connections break for some seconds: not the one you work through", o.NetworkType)
	case !binds && o.Adapter != "":
		return fmt.Errorf("--network-type %s uses no --adapter", o.NetworkType)
	}
	return nil
}

// Run makes a self-test. It returns an error, and creates nothing, where it could disturb a network that is
// in use. Each problem after that is in the report. When the context ends it creates nothing more. It deletes
// what it created in any case, and what an earlier run that was killed has left.
func Run(ctx context.Context, raw hns.Raw, o Options) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	t := &test{raw: raw, ids: map[netip.Addr]string{}}
	t.report = &Report{
		Format: Format, NKP: o.NKP, Windows: o.Host.Windows, NetworkType: o.NetworkType, Began: time.Now().UTC(),
		Objects: []Object{}, Notes: []string{}, Left: []string{},
	}

	var err error
	if t.report.HNS, err = raw.Version(); err != nil {
		return nil, fmt.Errorf("cannot ask HNS for its version: %w", err)
	}
	if !hns.FeaturesOf(t.report.HNS).Api.V2 {
		return nil, fmt.Errorf("this Windows is too old: %w", hns.Missing("HCN V2 API", "9.2", t.report.HNS))
	}

	if err := o.Host.checkProcesses(); err != nil {
		return nil, err
	}
	if err := t.removeLeftovers(); err != nil {
		return nil, err
	}
	if err := errors.Join(checkHNS(raw), o.Host.checkAddresses()); err != nil {
		return nil, err
	}

	defer func() {
		if err := t.clean(); err != nil {
			t.report.Left = append(t.report.Left, err.Error())
		}
	}()
	t.all(ctx, networkBody(o.NetworkType, o.Adapter))
	if ctx.Err() != nil {
		t.note("the self-test was interrupted")
	}
	return t.report, nil
}

// test is a self-test under way.
type test struct {
	raw    hns.Raw
	report *Report
	ids    map[netip.Addr]string // of endpoints
}

func (t *test) note(format string, args ...any) {
	t.report.Notes = append(t.report.Notes, fmt.Sprintf(format, args...))
}

// all creates everything.
func (t *test) all(ctx context.Context, network []byte) {
	made := t.create(hns.KindNetwork, "network", "", network)
	if made == nil {
		t.note("HNS refused the network: nothing else was tried. Another --network-type may work")
		return
	}
	info := parseNetwork(made)

	w := wanted(info, t.report.HNS)
	pod := hns.Endpoint{
		Name:               podName,
		HostComputeNetwork: hns.CanonicalID(info.ID),
		MacAddress:         "00-15-5D-C6-12-0A",
		IpConfigurations:   []hns.IPConfig{{IpAddress: localPod.String(), PrefixLength: uint8(podSubnet.Bits())}},
		SchemaVersion:      hns.Schema2,
	}
	t.endpoint(ctx, "a pod of this node, as a CNI plugin makes it", localPod, &pod)
	for _, e := range w.SortedEndpoints() {
		t.endpoint(ctx, fmt.Sprintf("%s %s", e.Purpose, e.Addr), e.Addr, &e.Body)
	}

	var several *plan.LoadBalancer // the first with more than one endpoint
	ids := map[string]int{}        // of load balancers -> index in the report
	for _, l := range w.SortedLoadBalancers() {
		body := t.body(l, len(l.Backends))
		if ctx.Err() != nil || len(body.HostComputeEndpoints) == 0 {
			continue
		}
		if made := t.create(hns.KindLoadBalancer, shapeOf(l), "", marshal(body)); made != nil {
			ids[hns.IDOf(made)] = len(t.report.Objects) - 1
			if several == nil && len(body.HostComputeEndpoints) > 1 {
				several = l
			}
		}
	}

	t.states(ids)
	if several != nil && ctx.Err() == nil && hns.FeaturesOf(t.report.HNS).ModifyLoadbalancer {
		t.modify(several, ids)
	}
}

// shapeOf names a load balancer in the report.
func shapeOf(l *plan.LoadBalancer) string {
	return fmt.Sprintf("%s (%s) %s", l.Service.Name, l.Kind, l.Frontend)
}

// body returns a load balancer with the first n of its endpoints that exist.
func (t *test) body(l *plan.LoadBalancer, n int) *hns.LoadBalancer {
	b := l.Body.Clone()
	for _, a := range l.Backends[:n] {
		if id := t.ids[a]; id != "" {
			b.HostComputeEndpoints = append(b.HostComputeEndpoints, id)
		}
	}
	return b
}

func (t *test) endpoint(ctx context.Context, shape string, a netip.Addr, body *hns.Endpoint) {
	if ctx.Err() != nil || t.ids[a] != "" {
		return
	}
	if made := t.create(hns.KindEndpoint, shape, body.HostComputeNetwork, marshal(body)); made != nil {
		t.ids[a] = hns.IDOf(made)
	}
}

func marshal(v any) []byte {
	text, _ := json.Marshal(v) // it is JSON
	return text
}

// create creates one object and records how it went; nil: HNS refused it.
func (t *test) create(k hns.Kind, shape, network string, body []byte) json.RawMessage {
	return t.record(k, shape, body, func() (json.RawMessage, error) { return t.raw.Create(k, network, body) })
}

// record makes a request and records how it went; nil: HNS refused it.
func (t *test) record(
	k hns.Kind, shape string, body []byte, call func() (json.RawMessage, error),
) json.RawMessage {
	o := Object{Kind: k, Shape: shape, Asked: body, Differences: []Difference{}, Added: []string{}}
	began := time.Now()
	stored, err := call()
	o.TookMS = float64(time.Since(began).Microseconds()) / 1000
	if err != nil {
		o.Error = err.Error()
	} else {
		o.Stored = stored
		o.compare()
	}
	t.report.Objects = append(t.report.Objects, o)
	return o.Stored
}

// modify takes an endpoint out of a load balancer.
func (t *test) modify(l *plan.LoadBalancer, ids map[string]int) {
	for id, i := range ids {
		if o := &t.report.Objects[i]; o.Shape == shapeOf(l) {
			body := marshal(t.body(l, len(l.Backends)-1))
			t.record(hns.KindLoadBalancer, o.Shape+", modified in place: one endpoint less", body,
				func() (json.RawMessage, error) { return t.raw.Modify(hns.KindLoadBalancer, id, body) })
			return
		}
	}
}

// states records the States of the load balancers.
func (t *test) states(ids map[string]int) {
	states, err := t.raw.LoadBalancerStates()
	if err != nil {
		t.note("cannot read the States of load balancers: %v", err)
		return
	}
	for id, state := range states {
		if i, ok := ids[id]; ok {
			t.report.Objects[i].State = state
		}
	}
}
