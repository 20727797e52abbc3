//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nkp-proxy/nkp/internal/testbed"
	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// aloneServices is how many Services a run without an API server has beside those it measures.
const aloneServices = 10

// alone measures VIP against direct where there is nothing but nkp, Open vSwitch and iptables: in the emulated machine of
// test/kernel, on the kernel's datapath and, for comparison, by kube-proxy's chains on a bridge of the kernel's. It judges
// nothing.
func alone(ctx context.Context, programs rig.Programs) error {
	if err := errors.Join(testbed.OVS.Available(), testbed.Linux.Available()); err != nil {
		return err
	}
	var r Results
	for _, kind := range []rig.Kind{rig.NKP, rig.IPTables} {
		d, err := dataAlone(ctx, kind, programs)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		r.Data = append(r.Data, d)
	}
	fmt.Println(report.Text(dataTable(&r)))
	return nil
}

func dataAlone(ctx context.Context, kind rig.Kind, programs rig.Programs) (d Data, err error) {
	n, err := rig.NewNodeAlone(ctx, kind, aloneServices, programs)
	if err != nil {
		return d, err
	}
	defer func() {
		if err != nil && n.Proxy != nil {
			err = fmt.Errorf("%w\nthe end of its log:\n%s", err, n.Proxy.Log())
		}
		err = errors.Join(err, n.Close())
	}()
	// An emulated machine does little in a second.
	p := plan{rounds: 4, round: testbed.Patient(750 * time.Millisecond)}
	m := &measurement{Node: n, services: aloneServices, plan: p}
	begin := time.Now()
	if err := m.Start(); err != nil {
		return d, err
	}
	if _, err := m.reachAll(ctx, begin); err != nil {
		return d, err
	}
	return m.data(ctx)
}
