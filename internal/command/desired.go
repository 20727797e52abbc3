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

// desired is what should be installed on this node, computed from the source without an agent.
type desired struct {
	tracker *k8s.Tracker
	model   *k8s.Model
	changes k8s.Changes // from nothing to the model
}

// desired reads the source once and computes the model for this node. local reports whether nkp runs on that
// node, so that its interfaces' addresses count. It prints the problems of the source to stderr, a line each,
// and fails if one is an error.
func (s *settings) desired(
	ctx context.Context, by mode.Mode, local bool, stderr io.Writer,
) (*desired, error) {
	objects, problems, err := s.readSource(ctx)
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("%s in the input; nothing was planned", what)
	}

	t := k8s.NewTracker(s.TrackerOptions(by))
	if local {
		ips, err := s.LocalAddresses(by)
		if err != nil {
			return nil, fmt.Errorf("the node's addresses: %w", err)
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

	return &desired{t, model, changes}, nil
}

// compile compiles the model for the bridge; sw is nil if there is no switch to read facts from.
func (s *settings) compile(
	d *desired, sw *ovsdb.Switch,
) (c *pipeline.Compiler, warnings []string, err error) {
	cfg, warnings := s.PipelineConfig(d.model, sw)
	if c, err = pipeline.NewCompiler(cfg); err != nil {
		return nil, nil, err
	}
	c.Update(d.changes.Ports)
	return c, append(warnings, c.Missing()...), nil
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
