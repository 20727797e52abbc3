package localhost

import (
	"math"

	"golang.org/x/sys/unix"
)

// maxDescriptors returns how many descriptors this process may have open. The Go runtime has raised the limit
// to the hard one.
func maxDescriptors() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return math.MaxInt32
	}
	return int(min(l.Cur, math.MaxInt32))
}
