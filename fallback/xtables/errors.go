package xtables

import "errors"

// ErrBusy is wrapped by transient errors, which are not the input's fault: the lock was held, another process changed the tables
// at the same time, or the program did not end.
var ErrBusy = errors.New("the tables are busy")
