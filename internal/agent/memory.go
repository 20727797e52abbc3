package agent

import (
	"os"
	"runtime/debug"
	"time"
)

// settleAfter the first state is in, nkp holds what it will hold from now on.
const settleAfter = 2 * time.Second

// settleMemory gives back what only the first state needed, a third of the heap, and keeps it from growing as
// far again: changes are small, and their garbage needs little room. Who sets GOGC decides otherwise.
func settleMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(15)
	}
	debug.FreeOSMemory()
}
