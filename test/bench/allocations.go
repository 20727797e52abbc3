//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// changesPerBlock is after how many changes nkp is asked how much it has allocated.
const changesPerBlock = 20

// allocations finds out how many bytes nkp allocates for one change. nkp does other things meanwhile, such as to read the
// switch back once a minute, and allocates for them: the block of changes with the least leaves that out, while what every
// change costs is in all of them. For kube-proxy it finds out nothing.
type allocations struct {
	m       *measurement
	asking  float64 // bytes that the question itself costs
	before  float64 // bytes allocated when the block began
	changes int     // in this block
	blocks  []float64
}

func (m *measurement) newAllocations(ctx context.Context) (*allocations, error) {
	a := &allocations{m: m}
	if m.Kind != rig.NKP {
		return a, nil
	}
	var err error
	for i := range 5 { // the first cost more than those that follow
		earlier := a.before
		if a.before, err = m.allocated(ctx); err != nil {
			return nil, err
		}
		if cost := a.before - earlier; i == 1 || i > 1 && cost < a.asking {
			a.asking = cost
		}
	}
	return a, nil
}

// changed counts one more change.
func (a *allocations) changed(ctx context.Context) error {
	if a.changes++; a.changes < changesPerBlock || a.m.Kind != rig.NKP {
		return nil
	}
	now, err := a.m.allocated(ctx)
	if err != nil {
		return err
	}
	a.blocks = append(a.blocks, max(0, now-a.before-a.asking)/changesPerBlock)
	a.before, a.changes = now, 0
	return nil
}

// perChange returns the least of the blocks, per change; 0 if nothing is known.
func (a *allocations) perChange() float64 {
	if len(a.blocks) == 0 {
		return 0
	}
	return slices.Min(a.blocks)
}

// allocated returns how many bytes nkp has allocated since its start.
func (m *measurement) allocated(ctx context.Context) (float64, error) {
	if m.Kind != rig.NKP {
		return 0, nil
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return m.Node.Node.DialTCP(ctx, addr, testbed.DialOptions{})
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+rig.MetricsAddress+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return 0, err
	}
	f := families["go_memstats_alloc_bytes_total"]
	if f == nil {
		return 0, fmt.Errorf("nkp serves no go_memstats_alloc_bytes_total")
	}
	return f.Metric[0].GetCounter().GetValue(), nil
}
