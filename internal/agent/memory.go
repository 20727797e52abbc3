package agent

import (
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// startReserve is by how much the heap seems larger than it is until the first state is in force: an allocation that nobody
// writes to, and that takes no memory therefore. A start allocates several times what it leaves behind. Without the reserve
// the collector would run thirty times meanwhile, for a third of the start's CPU time; with it, about six times: first
// when the heap has half of the reserve, and each time that much later than otherwise.
const startReserve = 96 << 20

//lint:ignore U1000 it is held, not read
var reserve []byte

// SaveMemory makes the collector thrifty, for a process that holds much and allocates little: the heap grows by half
// between collections, not to twice its size. Who sets GOGC decides otherwise.
func SaveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
		reserve = make([]byte, startReserve)
	}
}

// The start is over settleAfter the first state is in force: nkp holds what it will hold from now on. A data plane that does
// not get there is not waited for beyond settleAtMost after the source has told all it knows.
const (
	settleAfter  = time.Second
	settleAtMost = 30 * time.Second
)

// settling settles memory once, whoever asks first.
type settling struct{ once sync.Once }

// in settles memory after a while, unless that has happened by then.
func (s *settling) in(d time.Duration) {
	time.AfterFunc(d, func() { s.once.Do(settleMemory) })
}

// settleMemory gives back what only the first state needed, and keeps the heap from growing as far again: changes are
// small, and their garbage needs little room. Who sets GOGC decides otherwise.
func settleMemory() {
	if os.Getenv("GOGC") == "" {
		reserve = nil
		debug.SetGCPercent(15)
	}
	debug.FreeOSMemory()
}
