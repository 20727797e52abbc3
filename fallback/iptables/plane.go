package iptables

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Options configure the plane.
type Options struct {
	fallback.Options
	// Backend is nf_tables or legacy; "": the one that the rest of the node uses.
	Backend string
}

// New returns the plane. It changes nothing on the node.
func New(o Options) (*fallback.Plane, error) { return fallback.New(kernel{o}, o.Options) }

// kernel is the plane's part of a fallback.Plane.
type kernel struct{ asked Options }

// Name is part of fallback.Kernel.
func (kernel) Name() string { return "iptables" }

// Plan is part of fallback.Kernel.
func (kernel) Plan(m *k8s.Model, c serving.Config) string { return rules.Plan(m, c) }

// Diff is part of fallback.Kernel.
func (kernel) Diff(ctx context.Context, m *k8s.Model, o fallback.Options, backend string) (string, error) {
	return Diff(ctx, m, Options{o, backend})
}
