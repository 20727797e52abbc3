package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Differs compares one Service port's own flows and groups on the switch with the wanted ones. It returns a line for each that is
// missing ("+ ") or should not be there ("- "). It changes nothing.
func (p *Plane) Differs(ctx context.Context, name k8s.PortName) (lines []string, err error) {
	askErr := p.ask(ctx, func() {
		switch {
		case p.prog.compiler == nil:
			err = errors.New("the agent's source has not synced yet")
		case p.prog.conn == nil:
			err = p.notConnected()
		default:
			lines, err = Differs(ctx, p.prog.conn, p.prog.compiler, name)
		}
	})
	return lines, errors.Join(askErr, err)
}

// Differs is Plane.Differs for callers with a compiler and a connection of their own.
func Differs(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler, name k8s.PortName) ([]string, error) {
	flows, groups := c.Objects(name)
	if len(flows) == 0 {
		return nil, nil
	}
	layout := c.Config().Layout
	id, _ := layout.PortOfCookie(flows[0].Cookie)
	have, err := ReadInstalled(ctx, conn, layout, id)
	if err != nil {
		return nil, err
	}
	want := &flow.State{Flows: map[flow.Key]*flow.Flow{}, Groups: map[uint32]*flow.Group{}}
	for _, f := range flows {
		want.Flows[f.Key] = f
	}
	for _, g := range groups {
		want.Groups[g.ID] = g
	}
	var lines []string
	for line := range strings.Lines(DiffText(flow.Diff(have, want))) {
		lines = append(lines, strings.TrimRight(line, "\n"))
	}
	return lines, nil
}

// notConnected reports why there is no OpenFlow connection. It runs on the loop.
func (p *Plane) notConnected() error {
	if sw := p.db.Switch(); !sw.Exists {
		return errors.New(Gone(&sw))
	}
	if err := p.of.Status().LastError; err != nil {
		return fmt.Errorf("the agent is not connected to the switch: %w", err)
	}
	return errors.New("the agent is not connected to the switch")
}

// Gone says of a bridge that nkp had that it is not there any more, and which are.
func Gone(sw *ovsdb.Switch) string {
	text := "bridge " + sw.Bridge + " does not exist any more"
	if len(sw.Bridges) > 0 {
		return text + " (there are: " + strings.Join(sw.Bridges, ", ") + ")"
	}
	return text + " (there is none at all)"
}
