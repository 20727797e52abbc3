//go:build linux

package traffic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// takeTurns lets all clients work on one side, then all on the other, until the duration is over. Every second pair of turns
// begins with the other side, so that what changes steadily meets both alike. It returns the turns of both sides.
func takeTurns(clients []client, o Options) (turns [2][]Turn, err error) {
	if !o.Connect {
		for _, c := range clients {
			for _, s := range c.sides {
				defer s.close()
				if !s.open() {
					return turns, s.err
				}
			}
		}
	}
	for end, first := time.Now().Add(o.Duration), 0; time.Now().Before(end); first = 1 - first {
		for _, number := range [2]int{first, 1 - first} {
			t, err := takeTurn(clients, number, o)
			if err != nil {
				return turns, err
			}
			if t.Done == 0 && !o.Connect { // what has begun in a turn ends in it: a connection is lost
				return turns, lost(clients, number)
			}
			turns[number] = append(turns[number], t)
		}
	}
	return turns, nil
}

// lost returns the error of a client that has lost a connection.
func lost(clients []client, number int) error {
	for _, c := range clients {
		if err := c.sides[number].err; err != nil {
			return fmt.Errorf("a connection is lost: %w", err)
		}
	}
	return errors.New("nothing got through")
}

func takeTurn(clients []client, number int, o Options) (t Turn, err error) {
	done := func() (n int) {
		for _, c := range clients {
			n += len(c.sides[number].took)
		}
		return n
	}
	cpu, err := cpuTime(o.Watch)
	if err != nil {
		return t, err
	}
	before, begin := done(), time.Now()
	together(clients, func(c *client) {
		for s := c.sides[number]; time.Since(begin) < o.Turn; {
			if !s.timed(o.Connect) && !o.Connect {
				return
			}
		}
	})
	t.Second, t.Done = time.Since(begin).Seconds(), done()-before
	after, err := cpuTime(o.Watch)
	t.CPU = micro(after - cpu)
	return t, err
}

// cpuTime returns the CPU time that all threads of a process have used; 0 without a process. Unlike that of /proc/PID/stat,
// which counts in ticks of 10 ms, it is exact enough for a turn.
func cpuTime(pid int) (sum time.Duration, err error) {
	if pid == 0 {
		return 0, nil
	}
	// The kernel's Documentation/scheduler/sched-stats.rst: time spent on the CPU comes first, in nanoseconds.
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("process %d is gone, or the kernel keeps no schedstat", pid)
	}
	for _, file := range list {
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			continue // a thread that has ended
		}
		var ns time.Duration
		if _, err := fmt.Fscan(strings.NewReader(string(text)), (*int64)(&ns)); err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += ns
	}
	return sum, err
}
