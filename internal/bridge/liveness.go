package bridge

import (
	"errors"
	"sync/atomic"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/ofctrl"
)

// liveness records the loop's progress. After the switch has left a request unanswered, it records none until
// the switch has been read back again or does not run, because a plane that only reconnects and asks in vain
// is stuck, too. Its methods may be called from any goroutine.
type liveness struct {
	loop       *dataplane.Loop
	unanswered atomic.Bool
}

func (l *liveness) work(doing string) {
	if !l.unanswered.Load() {
		l.loop.Work(doing)
	}
}

func (l *liveness) progress() {
	if !l.unanswered.Load() {
		l.loop.Progress()
	}
}

func (l *liveness) rest() {
	if !l.unanswered.Load() {
		l.loop.Rest()
	}
}

// lost records whether the connection was closed because the switch did not answer. It is called while the
// loop works.
func (l *liveness) lost(err error) {
	if errors.Is(err, ofctrl.ErrNoAnswer) {
		l.unanswered.Store(true)
	}
}

// absent records that no switch runs: nkp waits for one, and is not stuck.
func (l *liveness) absent() {
	if l.unanswered.CompareAndSwap(true, false) {
		l.loop.Rest()
	}
}

// readBack records that the switch answered a read-back.
func (l *liveness) readBack() {
	l.unanswered.Store(false)
	l.loop.Progress()
}
