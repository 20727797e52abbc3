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

// alone measures VIP against direct where there is nothing but nkp and Open vSwitch: in the emulated machine of test/kernel,
// on the kernel's datapath. It judges nothing.
func alone(ctx context.Context, programs rig.Programs) (err error) {
	if err := testbed.OVS.Available(); err != nil {
		return err
	}
	n, err := rig.NewNodeAlone(ctx, aloneServices, programs)
	if err != nil {
		return err
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
		return err
	}
	if _, err := m.reachAll(ctx, begin); err != nil {
		return err
	}
	d, err := m.data(ctx)
	if err != nil {
		return err
	}
	fmt.Println(report.Text(dataTable(&Results{Data: []Data{d}})))
	return nil
}
