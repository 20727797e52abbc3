package k8s

import (
	"context"
)

// Source is where API objects come from: manifest files, or an API server.
type Source interface {
	// Run reports all objects to the sink, then reports changes until the context ends, and returns nil.
	// It returns early only with an error that it cannot recover from.
	Run(ctx context.Context, sink Sink) error
}

// Sink receives the reports of a Source. A Source calls it from one goroutine at a time; a slow call delays
// the source and nothing else.
type Sink interface {
	// Apply takes changes that belong together: no intermediate state was ever meant to be in force. The sink
	// may keep the slice.
	Apply([]Change)
	// Synced is called once, after the changes that make up the first complete state. Nothing may be
	// programmed before.
	Synced()
	// Problems takes all current problems of the source. They replace those of the previous call.
	Problems(Problems)
}

// Problems is what is wrong with the input of a Source, each list sorted by place.
type Problems struct {
	// Errors are about input that could not be used. The last good state of the objects concerned stays in
	// force.
	Errors []Warning
	// Warnings are about input that was used, but is probably not what was meant.
	Warnings []Warning
}

// Empty reports whether nothing is wrong.
func (p Problems) Empty() bool { return len(p.Errors) == 0 && len(p.Warnings) == 0 }
