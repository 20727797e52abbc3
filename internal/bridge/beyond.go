package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// beyond is what the flows of others do with packets that nkp has passed on: those of table 0, and of the
// tables that these lead to, up to ofctrl.MaxForeign flows.
type beyond struct {
	stateful *flow.Flow // one that uses conntrack; nil: none does
	unmarks  *flow.Flow // one that may clear the bit of passed packets; nil: none does
	unread   string     // the first table with too many flows to look at
}

// beyond reads what the flows of others do with packets that nkp has passed on. It calls pause between two
// tables; an error of pause ends it.
func (s *Settings) beyond(ctx context.Context, conn *ofctrl.Conn, pause func() error) (b beyond, err error) {
	if !s.Layout.Passes() {
		return b, nil
	}
	sizes, err := conn.TableSizes(ctx)
	if err != nil {
		return b, err
	}

	const first = 0
	left, own := uint32(ofctrl.MaxForeign), s.Layout.Tables()
	tables, met := []uint8{first}, [256]bool{first: true}
	for ; len(tables) > 0; tables = tables[1:] {
		t := tables[0]
		if sizes[t] > left {
			b.unread = fmt.Sprintf("table %d, with %d flows", t, sizes[t])
			break
		}
		left -= sizes[t]

		err := conn.EachForeign(ctx, s.Filter(), t, func(f *flow.Flow) {
			if !s.Layout.PassedOn(f) {
				return
			}
			does := flow.EffectsOf(f.Actions)
			if b.stateful == nil && (does.Conntrack || f.Match.CTState.Value != 0) {
				b.stateful = f
			}
			if b.unmarks == nil && s.Layout.Unmarks(&does) {
				b.unmarks = f
			}
			for next := range met {
				if !met[next] && does.LeadTo(uint8(next)) && !slices.Contains(own, uint8(next)) {
					met[next] = true
					tables = append(tables, uint8(next))
				}
			}
		})
		if err == nil {
			err = pause()
		}
		if err != nil {
			return b, fmt.Errorf("read the flows of others in table %d: %w", t, err)
		}
	}
	return b, nil
}

// WhyUnmarked returns why a packet that nkp has passed on may come back to nkp's flows; "": it does not.
func (s *Settings) WhyUnmarked(ctx context.Context, conn *ofctrl.Conn) (string, error) {
	b, err := s.beyond(ctx, conn, func() error { return nil })
	switch {
	case err != nil:
		return "", err
	case b.unmarks != nil:
		return fmt.Sprintf(
			"A flow of others may clear bit 31 of reg%d (--exit-register), which marks passed packets: %s",
			s.Layout.ExitRegister, b.unmarks), nil
	case b.unread != "":
		return "The flows of others are too many to check: " + b.unread, nil
	}
	return "", nil
}

// Unmarks is Settings.WhyUnmarked for the plane's switch. It reads beside the loop, because changes must not
// wait for the flows of others.
func (p *Plane) Unmarks(ctx context.Context) (why string, err error) {
	if err := p.Answers(ctx); err != nil {
		return "", err
	}
	conn := p.conn()
	if conn == nil {
		return "", p.notConnected()
	}
	return p.set.WhyUnmarked(ctx, conn)
}

// Consequence is what becomes of policies that use conntrack, for packets through Services.
const Consequence = "policies of others that use conntrack see client→endpoint on the way there and " +
	"Service→client on the way back"

// mayStart reports whether nkp may program the switch. At a start it must not where a flow of others uses
// conntrack on packets that nkp passes on, unless Settings.AllowStateful. Once it may, it goes on whatever
// flows come.
func (g *programmer) mayStart(ctx context.Context) bool {
	if !g.permitted && !g.set.AllowStateful {
		if g.lookBeyond(ctx, func() {}); g.conn == nil || g.beyond.stateful != nil {
			return false
		}
	}
	g.permitted = true
	return true
}

// lookBeyond updates beyond. It calls pause between two tables, which may program changes. A flow that uses
// conntrack is reported when it is the first.
func (g *programmer) lookBeyond(ctx context.Context, pause func()) {
	if g.conn == nil || g.set.AllowStateful {
		return
	}
	conn := g.conn
	found, err := g.set.beyond(ctx, conn, func() error {
		if pause(); g.conn != conn {
			return errOvertaken
		}
		return nil
	})
	switch {
	case errors.Is(err, errOvertaken): // the next connection looks again
		return
	case err != nil:
		g.cannotRead(ctx, err)
		return
	}
	before := g.beyond.stateful
	if g.beyond = found; found.stateful != nil && before == nil {
		text := g.beyondWarnings()[0]
		g.log.Warn(text)
		g.hooks.Stateful(text)
	}
}

// beyondWarnings returns the warnings of `nkp status` about beyond, first of all that about conntrack.
func (g *programmer) beyondWarnings() (out []string) {
	if f := g.beyond.stateful; f != nil {
		text := fmt.Sprintf("a flow of others uses conntrack on packets that nkp passes on "+
			"(cookie=%#x,table=%d,priority=%d,%s), and %s",
			f.Cookie, f.Table, f.Priority, f.Match, Consequence)
		if g.permitted {
			text += ": they may not hold for Services; --allow-stateful-policies lets nkp start beside them"
		} else {
			text += fmt.Sprintf(": nkp programs nothing before that flow is gone (looked for every %v), "+
				"or --allow-stateful-policies permits it",
				g.set.CountPeriod)
		}
		out = append(out, text)
	}
	if g.beyond.unread != "" {
		out = append(out, fmt.Sprintf("flows of others that may use conntrack are too many to look at: "+
			"%s (--allow-stateful-policies)", g.beyond.unread))
	}
	return out
}
