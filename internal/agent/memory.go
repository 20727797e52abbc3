package agent

import (
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// startReserve is the size of an allocation that makes the heap seem larger until the first state is in force. nkp never writes
// to it, so that it takes no memory. A start allocates several times what it leaves behind. Without the reserve, the garbage
// collector would run thirty times meanwhile and take a third of the start's CPU time. With it, the collector runs about six
// times: first when the heap has half of the reserve, and each time that much later than otherwise.
const startReserve = 96 << 20

//lint:ignore U1000 it is held, not read
var reserve []byte

// SaveMemory tunes the garbage collector for a process that holds much and allocates little: between collections the heap
// grows by half instead of doubling. It does nothing if GOGC is set.
func SaveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
		reserve = make([]byte, startReserve)
	}
}

// The start ends settleAfter after the first state is in force, when nkp holds what it will hold from then on. If a data plane
// does not get there, the start ends settleAtMost after the source has synced.
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

// settleMemory returns memory that only the start needed to the system. It also limits further growth of the heap, because
// changes are small and leave little garbage; if GOGC is set, that limit is not changed.
func settleMemory() {
	if os.Getenv("GOGC") == "" {
		reserve = nil
		debug.SetGCPercent(15)
	}
	debug.FreeOSMemory()
}
