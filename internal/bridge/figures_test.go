package bridge

import (
	"log/slog"
	"testing"
)

// Scrapes come before the first model, too: then there is nothing to count.
func TestFiguresBeforeAModel(t *testing.T) {
	p := New(Settings{}, nil, Hooks{}, slog.New(slog.DiscardHandler))
	p.publish()
	if f := p.Figures(); f.FlowsWanted != 0 || f.Connected {
		t.Errorf("%+v", f)
	}
}
