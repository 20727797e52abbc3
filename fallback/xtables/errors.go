package xtables

import "errors"

// ErrBusy is wrapped by errors that blame the moment, not the input: the lock was held, another process changed the tables at
// the same time, or the program did not end.
var ErrBusy = errors.New("the tables are busy")
