package restore

import "errors"

// ErrBusy is wrapped by transient errors, which are not the input's fault: the lock was held, another process
// changed the tables at the same time, or the program did not end.
var ErrBusy = errors.New("the tables are busy")

// ErrNoPrograms is returned when the kernel has tables of the legacy back end that nothing here can read.
var ErrNoPrograms = errors.New("iptables (legacy) has tables, " +
	"and its programs, which could read them, are not installed")
