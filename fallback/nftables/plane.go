package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Options configure the plane.
type Options struct {
	fallback.Options
	Settings
}

// Settings are those that iptables does not have.
type Settings = rules.Settings

// Validate returns an error that says which setting cannot be.
func Validate(s Settings) error {
	if err := rules.CheckDevices(s.FlowtableDevices); err != nil {
		return fmt.Errorf("--nftables-flowtable-devices: %w", err)
	}
	if s.CountTraffic && len(s.FlowtableDevices) > 0 {
		return errors.New("--nftables-flowtable-devices and --nftables-service-counters " +
			"exclude each other: packets in a flowtable are not counted")
	}
	return nil
}

// New returns the plane. It changes nothing on the node.
func New(o Options) (*fallback.Plane, error) {
	if err := Validate(o.Settings); err != nil {
		return nil, err
	}
	return fallback.New(kernel{o}, o.Options)
}

// kernel is the plane's part of a fallback.Plane.
type kernel struct{ asked Options }

// Name is part of fallback.Kernel.
func (kernel) Name() string { return "nftables" }

// Plan is part of fallback.Kernel.
func (k kernel) Plan(m *k8s.Model, c serving.Config) string { return Plan(m, c, k.asked.Settings) }

// Plan returns the tables of both families for a model, as nkp plan -o nft prints them.
func Plan(m *k8s.Model, c serving.Config, s Settings) string {
	return rules.Plan(m, rules.Config{Config: c, Settings: s})
}

// Diff is part of fallback.Kernel.
func (k kernel) Diff(_ context.Context, m *k8s.Model, o fallback.Options, _ string) (string, error) {
	return Diff(m, Options{o, k.asked.Settings})
}

// Uncounted is part of fallback.Kernel.
func (k kernel) Uncounted() string {
	if k.asked.CountTraffic {
		return ""
	}
	return "packets and bytes: n/a: they are not counted (--nftables-service-counters)"
}
