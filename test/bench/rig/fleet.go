//go:build linux

package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Fleet is many nkp agents in one namespace, each with a switch in memory. They share the database of one real Open
// vSwitch, which they only read, and the link to the API server.
type Fleet struct {
	Agents   []*Process
	Switches []*ofctrltest.Switch

	bed        *testbed.Bed
	nkp        string
	kubeconfig string
}

// NewFleet makes the switches; no agent runs yet. Close ends all of it.
func NewFleet(ctx context.Context, agents int, api *API, programs Programs) (*Fleet, error) {
	bed, err := testbed.New(ctx, testbed.Options{NoServiceRoutes: true})
	if err != nil {
		return nil, err
	}
	f := &Fleet{bed: bed, nkp: programs.NKP}
	if f.kubeconfig, err = api.Link(ctx, bed, bed.RunDir); err != nil {
		return nil, errors.Join(err, bed.Close())
	}
	for i := range agents {
		s, err := ofctrltest.Listen(f.path(i, "switch"), ofctrltest.Options{})
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.Switches = append(f.Switches, s)
	}
	return f, nil
}

func (f *Fleet) path(i int, what string) string {
	return filepath.Join(f.bed.RunDir, fmt.Sprintf("%s-%d", what, i))
}

// Close ends everything.
func (f *Fleet) Close() error {
	for _, p := range f.Agents {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	var errs []error
	for _, s := range f.Switches {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, f.bed.Close())...)
}

// Start starts all agents at once.
func (f *Fleet) Start() error {
	for i := range f.Switches {
		p, err := startProcess(f.bed.Node, fmt.Sprintf("agent-%d", i), f.bed.RunDir, exec.Command(f.nkp, "run", "--mode", "ovs",
			"--kubeconfig", f.kubeconfig, "--ovsdb", f.bed.DB(), "--bridge", f.bed.Bridge, "--openflow", "unix:"+f.path(i, "switch"),
			"--hostname-override", nodeName, "--cluster-cidr", clusterCIDR, "--socket", f.path(i, "sock"), "--host-traffic", "off",
			"--healthz-bind-address", "", "--metrics-bind-address", ""))
		if err != nil {
			return err
		}
		f.Agents = append(f.Agents, p)
	}
	return nil
}

// Wire returns the bytes that have passed the link to the API server so far, both ways.
func (f *Fleet) Wire(ctx context.Context) (fromServer, toServer float64, err error) {
	out, err := f.bed.Node.Exec(ctx, "ip", "-j", "-s", "link", "show", "dev", "api")
	if err != nil {
		return 0, 0, err
	}
	var links []struct {
		Stats struct {
			RX struct{ Bytes float64 }
			TX struct{ Bytes float64 }
		} `json:"stats64"`
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		return 0, 0, fmt.Errorf("ip -s link: %q: %w", out, err)
	}
	return links[0].Stats.RX.Bytes, links[0].Stats.TX.Bytes, nil
}
