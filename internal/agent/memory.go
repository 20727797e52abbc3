package agent

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startReserve is the size of an allocation that makes the heap seem larger until the first state is in
// force. nkp never writes to it, so that it takes no memory. A start allocates several times what it leaves
// behind. Without the reserve, the garbage collector would run thirty times meanwhile and take a third of the
// start's CPU time. With it, the collector runs about six times: first when the heap has half of the reserve,
// and each time that much later than otherwise.
const startReserve = 96 << 20

//lint:ignore U1000 it is held, not read
var reserve []byte

// SaveMemory tunes the garbage collector for a process that holds much and allocates little: between
// collections the heap grows by half instead of doubling. It does nothing if GOGC is set. Where the container
// has a memory limit, the collector works harder before the kernel would kill the process; GOMEMLIMIT
// overrides that.
func SaveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
		reserve = make([]byte, startReserve)
	}
	limitMemory(cgroups)
}

// cgroups is the root of the hierarchy.
const cgroups = "/sys/fs/cgroup"

// limitMemory sets the limit of the garbage collector, which counts the reserve as if it took memory.
func limitMemory(root string) {
	if limit := containerMemory(root); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit/10*9 + int64(len(reserve))) // the rest is for what is not the heap's
	}
}

// containerMemory returns the memory limit of the container, in bytes; 0: there is none. Inside a
// container the root of the hierarchy is its own cgroup: of version 2, or of version 1, whose number for
// no limit is huge.
func containerMemory(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, _ := os.ReadFile(filepath.Join(root, file))
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit < 1<<60 {
			return limit
		}
	}
	return 0
}

// The start ends settleAfter after the first state is in force, when nkp holds what it will hold from then
// on. If a data plane has not got there settleAtMost after the source has synced, memory is settled then,
// too.
const (
	settleAfter  = time.Second
	settleAtMost = 30 * time.Second
)

// settling settles memory when it is asked to.
type settling struct {
	settle func() // settleMemory

	mu    sync.Mutex // protects timer
	timer *time.Timer
}

// in settles memory after a while. It replaces an earlier call whose time has not come.
func (s *settling) in(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(d, s.settle)
}

// settleMemory returns memory that only the start needed to the system. It also limits further growth of the
// heap, because changes are small and leave little garbage; if GOGC is set, that limit is not changed.
func settleMemory() {
	if os.Getenv("GOGC") == "" {
		reserve = nil
		debug.SetGCPercent(15)
	}
	limitMemory(cgroups)
	debug.FreeOSMemory()
}
