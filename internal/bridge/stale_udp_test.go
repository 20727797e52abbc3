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

// Connections to removed endpoints that wait for a scan are told apart from others, also beyond what is kept.
func TestBacklogCloses(t *testing.T) {
	udp, tcp := flow.CTFilter{IPProto: flow.ProtoUDP}, flow.CTFilter{IPProto: flow.ProtoTCP}
	var b backlog
	if b.add(true, []flow.CTFilter{udp}); b.closes {
		t.Error("UDP and an audit close connections")
	}
	if b.add(false, []flow.CTFilter{tcp}); !b.closes {
		t.Error("a removed endpoint's are not among them")
	}
	if b.add(false, make([]flow.CTFilter, pipeline.MaxStale)); !b.closes || len(b.filters) > 0 {
		t.Errorf("beyond what is kept: %t, %d filters", b.closes, len(b.filters))
	}
}
