//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// aloneServices is how many Services a run without an API server has beside those it measures, unless a flag sets another number.
const aloneServices = 10

// withoutAPI does what the flags -alone and -profile say.
func withoutAPI(ctx context.Context, programs rig.Programs, root, only, sizes string, clients, pairs int) error {
	kind, ok := map[string]rig.Kind{"": rig.NKP, "nkp": rig.NKP, "nftables": rig.KubeNft, "iptables": rig.KubeLegacy, "nkp-iptables": rig.IPTables, "nkp-nftables": rig.NFTables}[only]
	switch {
	case !ok && pairs != 0:
		return fmt.Errorf("-only: %q cannot be profiled; one of nkp, nkp-nftables, nkp-iptables, nftables, iptables can", only)
	case pairs == 0 && kind != rig.NKP || !ok:
		return fmt.Errorf("-only: %q cannot be measured without an API server, only nkp can", only)
	}
	if pairs < 0 {
		return fmt.Errorf("-profile: %d is no number of legs", pairs)
	}
	if clients < 1 {
		return fmt.Errorf("-clients: %d is no number of clients", clients)
	}
	numbers := []int{aloneServices}
	if sizes != "" {
		numbers = nil
		for s := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n > rig.MostNumbered {
				return fmt.Errorf("-sizes: %q is no number of Services (0 to %d)", s, rig.MostNumbered)
			}
			numbers = append(numbers, n)
		}
	}
	dir, err := os.MkdirTemp("", "nkp-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := programs.BuildNKP(ctx, root, dir); err != nil {
		return err
	}
	if pairs == 0 {
		kinds := []rig.Kind{rig.NKP, rig.IPTables}
		if only == "nkp" {
			kinds = kinds[:1]
		}
		return alone(ctx, programs, kinds, numbers)
	}
	for _, n := range numbers {
		if err := profile(ctx, kind, programs, root, n, clients, pairs); err != nil {
			return err
		}
	}
	return nil
}

// alone measures VIP against direct where there is nothing but nkp, Open vSwitch and iptables: in the emulated machine of
// test/kernel, on the kernel's datapath and, for comparison, by kube-proxy's chains on a bridge of the kernel's. It judges
// nothing.
func alone(ctx context.Context, programs rig.Programs, kinds []rig.Kind, sizes []int) error {
	if err := errors.Join(testbed.OVS.Available(), testbed.Linux.Available()); err != nil {
		return err
	}
	var r Results
	for _, services := range sizes {
		for _, kind := range kinds {
			err := withNodeAlone(ctx, kind, services, programs, func(m *measurement) error {
				d, err := m.data(ctx)
				r.Data = append(r.Data, d)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s at %d Services: %w", kind, services, err)
			}
		}
	}
	fmt.Println(report.Text(dataTable(&r)))
	return nil
}

// withNodeAlone calls measure on a node where nkp, of kind NKP or IPTables, serves this many Services from a file.
func withNodeAlone(ctx context.Context, kind rig.Kind, services int, programs rig.Programs, measure func(*measurement) error) (err error) {
	n, err := rig.NewNodeAlone(ctx, kind, services, programs)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && n.Proxy != nil {
			err = fmt.Errorf("%w\nthe end of its log:\n%s", err, n.Proxy.Log())
		}
		err = errors.Join(err, n.Close())
	}()
	p := plan{rounds: 4, round: 3 * time.Second} // an emulated machine does little in a second
	m := &measurement{Node: n, services: services, plan: p}
	begin := time.Now()
	if err := m.Start(); err != nil {
		return err
	}
	if _, err := m.reachAll(ctx, begin); err != nil {
		return err
	}
	return measure(m)
}
