package bridge

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// NodeBeside returns the families of which the node's addresses are not on the bridge, for a model. Any
// goroutine may call it.
func (p *Plane) NodeBeside(m *k8s.Model) []k8s.Family {
	sw := p.db.Switch()
	return p.set.NodeBeside(m, &sw)
}

// NodeBeside returns the families of which the node's addresses are not on the bridge, for a model.
func (s *Settings) NodeBeside(m *k8s.Model, sw *ovsdb.Switch) []k8s.Family {
	cfg, _ := s.PipelineConfig(m, sw)
	return cfg.NodeElsewhere
}

// Config returns what the pipeline was made from.
func (p *Plane) Config(ctx context.Context) (cfg pipeline.Config, err error) {
	askErr := p.ask(ctx, func() {
		if p.prog.compiler == nil {
			err = errors.New("the agent's source has not synced yet")
			return
		}
		cfg = p.prog.compiler.Config()
	})
	return cfg, errors.Join(askErr, err)
}

// Owner returns which Service port has an id (the lower half of a cookie).
func (p *Plane) Owner(ctx context.Context, id uint32) (name k8s.PortName, ok bool) {
	err := p.ask(ctx, func() {
		if p.prog.compiler != nil {
			name, ok = p.prog.compiler.Owner(uint64(id))
		}
	})
	return name, ok && err == nil
}

// Installed reads one Service port's own flows and groups from the switch, wanted or not.
func (p *Plane) Installed(ctx context.Context, id uint32) (st *flow.State, err error) {
	askErr := p.ask(ctx, func() {
		if p.prog.conn == nil {
			err = p.notConnected()
			return
		}
		st, err = ReadInstalled(ctx, p.prog.conn, p.set.Layout, id)
	})
	return st, errors.Join(askErr, err)
}

// ReadInstalled reads the own flows and groups of one Service port.
func ReadInstalled(
	ctx context.Context,
	conn *ofctrl.Conn,
	l pipeline.Layout,
	id uint32,
) (*flow.State, error) {
	var f ofctrl.Filter
	f.Cookie, f.CookieMask, f.GroupLo, f.GroupHi = l.PortObjects(id)
	snap, err := conn.ReadBack(ctx, f)
	if err != nil {
		return nil, err
	}
	return snap.State, nil
}
