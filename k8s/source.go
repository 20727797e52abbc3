package k8s

import (
	"context"
)

// Source is where API objects come from: manifest files, or an API server.
type Source interface {
	// Run reports all objects to the sink, then keeps reporting what changes until the context ends, and
	// returns nil then. It returns early only with an error that it cannot recover from.
	Run(ctx context.Context, sink Sink) error
}

// Sink is who a Source reports to. A Source calls it from one goroutine at a time; a call that takes long holds up
// the source and nothing else.
type Sink interface {
	// Apply takes changes that belong together: no state in between was ever meant to be in force. The slice is the sink's to keep.
	Apply([]Change)
	// Synced is called once, after the changes that make up the first complete state. Nothing may be programmed before.
	Synced()
	// Problems takes everything that is wrong at the source now; it replaces what was reported before.
	Problems(Problems)
}

// Problems is what is wrong with the input of a Source, each list sorted by place.
type Problems struct {
	// Errors tell what could not be used. The last good state of the objects concerned stays in force.
	Errors []Warning
	// Warnings tell what was used, but is probably not what was meant.
	Warnings []Warning
}

// Empty reports whether nothing is wrong.
func (p Problems) Empty() bool { return len(p.Errors) == 0 && len(p.Warnings) == 0 }
