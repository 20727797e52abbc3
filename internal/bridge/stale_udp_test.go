package bridge

import (
	"testing"

	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// More deletions than nkp keeps are one listing.
func TestBacklogIsBounded(t *testing.T) {
	var b backlog
	for range 3 {
		if b.add(false, make([]flow.CTFilter, pipeline.MaxStale/4)); b.all {
			t.Fatalf("%d filters are a listing", len(b.filters))
		}
	}
	if b.add(false, make([]flow.CTFilter, pipeline.MaxStale/2)); !b.all || len(b.filters) > 0 {
		t.Errorf("a listing: %t, and %d filters", b.all, len(b.filters))
	}
}
