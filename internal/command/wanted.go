package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
)

// askTimeout bounds how long a command waits for the switch or its database.
const askTimeout = 30 * time.Second

// wanted is what should be on the switch, worked out without an agent.
type wanted struct {
	model    *k8s.Model
	compiler *pipeline.Compiler
	warnings []string
}

// wantModel reads the source once and computes the model for this node. local reports whether nkp runs on
// that node, so that its interfaces' addresses count. It prints the problems of the source to stderr, a line
// each, and fails if one is an error.
func (s *settings) wantModel(
	ctx context.Context, by mode.Mode, local bool, stderr io.Writer,
) (*k8s.Model, k8s.Changes, error) {
	_, model, changes, err := s.wantTracker(ctx, by, local, stderr)
	return model, changes, err
}

// wantTracker is wantModel for callers that also need the tracker.
func (s *settings) wantTracker(
	ctx context.Context, by mode.Mode, local bool, stderr io.Writer,
) (*k8s.Tracker, *k8s.Model, k8s.Changes, error) {
	var none k8s.Changes
	objects, problems, err := s.readSource(ctx)
	if err != nil {
		return nil, nil, none, err
	}

	for _, w := range problems.Warnings {
		fmt.Fprintf(stderr, "nkp: warning: %s\n", w)
	}
	if len(problems.Errors) > 0 {
		for _, e := range problems.Errors {
			fmt.Fprintf(stderr, "nkp: error: %s\n", e)
		}
		what := "1 error"
		if n := len(problems.Errors); n > 1 {
			what = fmt.Sprintf("%d errors", n)
		}
		return nil, nil, none, fmt.Errorf("%s in the input; nothing was planned", what)
	}

	t := k8s.NewTracker(s.TrackerOptions(by))
	if local {
		ips, err := s.LocalAddresses(by)
		if err != nil {
			return nil, nil, none, fmt.Errorf("the node's addresses: %w", err)
		}
		t.SetLocalAddresses(ips)
	}

	t.Apply(objects)
	model, changes := t.Flush()
	for _, w := range model.Warnings {
		fmt.Fprintf(stderr, "nkp: warning: %s\n", w)
	}

	if nodes := nodeNames(objects); len(nodes) > 0 && !slices.Contains(nodes, s.NodeName) {
		fmt.Fprintf(stderr,
			"nkp: warning: the manifests have no Node %s, only %s; name this node with --hostname-override\n",
			s.NodeName, strings.Join(nodes[:min(len(nodes), 5)], ", "))
	}

	return t, model, changes, nil
}

// want compiles the Services of the source for this node, as a mode serves them; sw is nil if there is no switch
// to read facts from.
func (s *settings) want(
	ctx context.Context, by mode.Mode, sw *ovsdb.Switch, stderr io.Writer,
) (*wanted, error) {
	model, changes, err := s.wantModel(ctx, by, sw != nil, stderr)
	if err != nil {
		return nil, err
	}
	cfg, warnings := s.PipelineConfig(model, sw)
	c, err := pipeline.NewCompiler(cfg)
	if err != nil {
		return nil, err
	}
	c.Update(changes.Ports)
	return &wanted{model: model, compiler: c, warnings: append(warnings, c.Missing()...)}, nil
}

func nodeNames(objects []k8s.Change) []string {
	var names []string
	for _, c := range objects {
		if c.Ref.Kind == k8s.KindNode {
			names = append(names, c.Ref.Name)
		}
	}
	return names
}

// connectTimeout bounds how long a command waits for the OpenFlow handshake, which a working switch completes
// in milliseconds.
const connectTimeout = 5 * time.Second

// connectSwitch opens an OpenFlow connection to the bridge.
func (s *settings) connectSwitch(ctx context.Context) (*ofctrl.Conn, error) {
	text, err := s.OpenFlowTarget()
	if err != nil {
		return nil, err
	}
	target, err := ofctrl.ParseTarget(text)
	if err != nil {
		return nil, usageError("--openflow: %w", err)
	}
	c, err := ofctrl.Dial(ctx, target,
		ofctrl.Options{Bridge: s.Bridge, TLS: s.TLS, ConnectTimeout: connectTimeout})
	var version *ofctrl.VersionError
	if errors.As(err, &version) {
		return nil, fmt.Errorf(
			"%w; enable it: ovs-vsctl add bridge %s protocols OpenFlow15, or nkp run --configure-bridge", err,
			s.Bridge)
	}
	return c, err
}
