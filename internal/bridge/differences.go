package bridge

import (
	"context"
	"strings"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Differences are the flows and groups of a switch that are not as nkp wants them.
type Differences struct {
	Own      *flow.Delta // what would bring nkp's own to the desired state
	Foreign  Foreign
	FailOpen string // why none of them is in force (Settings.FailOpen)
}

// Compare reads the switch back and compares it with what a compiler wants, for callers with a connection of
// their own. The compiler takes over the slots that the endpoints have on the switch.
func (s *Settings) Compare(
	ctx context.Context,
	conn *ofctrl.Conn,
	sw *ovsdb.Switch,
	c *pipeline.Compiler,
) (d Differences, err error) {
	d.Own, err = s.compareOwn(ctx, conn, c, othersNow)
	if err != nil {
		return d, err
	}

	// An agent that has seen the flows of others decide goes on as if they did (facts.followOthers). Only its
	// own flows show that, so the state that they are closer to is the one to compare with.
	if now := c.Config(); !d.Own.Empty() && now.Others != flow.OthersDecide {
		decided, err := s.compareOwn(ctx, conn, c, func(*ofctrl.Conn, map[uint8]int) flow.Others {
			return flow.OthersDecide
		})
		if err != nil {
			return d, err
		}
		if decided.Len() < d.Own.Len() {
			d.Own = decided
		} else if _, err := c.Reconfigure(now); err != nil {
			return d, err
		}
	}
	d.Foreign, d.FailOpen = s.knownForeign(conn, c, nil), s.FailOpen(ctx, sw)
	return d, nil
}

// compareOwn compares nkp's own flows and groups with what the compiler wants where others do what the
// function says.
func (s *Settings) compareOwn(
	ctx context.Context,
	conn *ofctrl.Conn,
	c *pipeline.Compiler,
	others func(conn *ofctrl.Conn, unread map[uint8]int) flow.Others,
) (*flow.Delta, error) {
	found, err := s.read(ctx, conn, c, true, func(unread map[uint8]int) (bool, error) {
		cfg := c.Config()
		if cfg.Others = others(conn, unread); cfg.Others == c.Config().Others {
			return false, nil
		}
		_, err := c.Reconfigure(cfg)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return found.changes(c)
}

// Text returns the lines of `nkp diff`; "": there is no difference.
func (d *Differences) Text() string {
	var b strings.Builder
	d.Own.WriteTo(&b) // a strings.Builder does not fail
	d.Foreign.writeTo(&b)
	if d.FailOpen != "" {
		b.WriteString("! " + d.FailOpen + "\n")
	}
	return b.String()
}

// Gone returns the message that nkp's bridge does not exist any more, with the bridges that do.
func Gone(sw *ovsdb.Switch) string {
	text := "bridge " + sw.Bridge + " does not exist any more"
	if len(sw.Bridges) > 0 {
		return text + " (there are: " + strings.Join(sw.Bridges, ", ") + ")"
	}
	return text + " (there is none at all)"
}
