package xtables

import "errors"

// ErrBusy is wrapped by errors of Tables.Restore that blame the moment, not the input: the lock was held, or another
// process changed the tables at the same time.
var ErrBusy = errors.New("the tables are busy")
