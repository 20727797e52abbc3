package bridge

import (
	"context"
	"errors"
)

// audit compares all that is on the switch with what should be, in parts, and calls pause between two of
// them, which may program changes. Only if something differs is everything read at once, and repaired.
func (g *programmer) audit(ctx context.Context, pause func()) {
	if !g.inStep() || g.refused.Len() > 0 {
		g.readBack(ctx)
		return
	}
	conn, found := g.conn, newComparison(g.compiler)
	found.Across()
	err := conn.ReadInParts(ctx, g.set.Filter(), found, func() error {
		g.alive.progress()
		if pause(); g.conn != conn || !g.inStep() {
			return errOvertaken
		}
		return nil
	})

	switch {
	case g.conn != conn: // what follows a new connection reads everything
	case errors.Is(err, errOvertaken) || err == nil && !found.InStep():
		g.readBack(ctx)
	case err != nil:
		g.cannotRead(ctx, err)
	default:
		g.audited(found.unread)
	}
}

// errOvertaken ends a reading in parts because a change in between was not accepted.
var errOvertaken = errors.New("overtaken by a change that the switch did not accept")

// audited records that everything was read back.
func (g *programmer) audited(unread map[uint8]int) {
	g.stats.Audited()
	g.alive.readBack()
	g.unread = unread
	g.lookForeign(true)
}
