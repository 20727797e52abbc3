package bridge

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// Scrapes come before the first model, too: then there is nothing to count.
func TestFiguresBeforeAModel(t *testing.T) {
	p := New(Settings{}, nil, noHooks(), slog.New(slog.DiscardHandler))
	p.publish()
	if f := p.Figures(); f.FlowsWanted != 0 || f.Connected {
		t.Errorf("%+v", f)
	}
}

// noHooks returns hooks that do nothing.
func noHooks() Hooks {
	return Hooks{
		Transaction:  func(dataplane.Transaction) {},
		Lost:         func(bool) {},
		Stateful:     func(string) {},
		ReservePorts: func(int, int) error { return errors.New("not asked to") },
		FailOpen:     func(bool) {},
	}
}
