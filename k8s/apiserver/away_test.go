package apiserver

import (
	"errors"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Since when the server is away is kept from the first call without an answer to the next with one; what is not vital does
// not count.
func TestAwaySince(t *testing.T) {
	h := newHealth("u", "n")
	begin := h.awaySince()
	if begin.IsZero() {
		t.Error("before it was ever asked: it answers")
	}
	h.note(k8s.KindService, nil)
	if got := h.awaySince(); got != begin {
		t.Errorf("with half of the answers: away since %v, want %v", got, begin)
	}
	h.note(k8s.KindEndpointSlice, nil)
	h.note(k8s.KindServiceCIDR, errors.New("no"))
	if got := h.awaySince(); !got.IsZero() {
		t.Errorf("it answers all that is vital: away since %v", got)
	}
	h.noteContact(errors.New("refused"))
	first := h.awaySince()
	h.noteContact(errors.New("timeout"))
	h.note(k8s.KindService, errors.New("timeout"))
	if got := h.awaySince(); first.IsZero() || got != first {
		t.Errorf("silent, and silent again: away since %v, then %v", first, got)
	}
	h.noteContact(nil)
	h.note(k8s.KindService, nil)
	if got := h.awaySince(); !got.IsZero() {
		t.Errorf("it answers again: away since %v", got)
	}
}
