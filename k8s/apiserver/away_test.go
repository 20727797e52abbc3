package apiserver

import (
	"errors"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Since when the server is away is kept from the first call without an answer to the next with one; kinds that are not required do
// not count.
func TestAwaySince(t *testing.T) {
	h := newHealth("u", "n")
	start := h.awaySince()
	if start.IsZero() {
		t.Error("before it was ever asked: it answers")
	}
	h.record(k8s.KindService, nil)
	if got := h.awaySince(); got != start {
		t.Errorf("with half of the answers: away since %v, want %v", got, start)
	}
	h.record(k8s.KindEndpointSlice, nil)
	h.record(k8s.KindServiceCIDR, errors.New("no"))
	if got := h.awaySince(); !got.IsZero() {
		t.Errorf("it answers for all required kinds: away since %v", got)
	}
	h.recordContact(errors.New("refused"))
	first := h.awaySince()
	h.recordContact(errors.New("timeout"))
	h.record(k8s.KindService, errors.New("timeout"))
	if got := h.awaySince(); first.IsZero() || got != first {
		t.Errorf("silent, and silent again: away since %v, then %v", first, got)
	}
	h.recordContact(nil)
	h.record(k8s.KindService, nil)
	if got := h.awaySince(); !got.IsZero() {
		t.Errorf("it answers again: away since %v", got)
	}
}
