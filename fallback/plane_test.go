package fallback

import (
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// What begins must not wait for ever for what cannot be had: a family has been tried when it is in step, or has failed.
func TestTried(t *testing.T) {
	p, err := New(DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what   string
		family k8s.Family
		change func(*FamilyStatus)
		want   bool
	}{
		{"at first", k8s.IPv4, func(*FamilyStatus) {}, false},
		{"one family in step", k8s.IPv4, func(s *FamilyStatus) { s.InStep = true }, false},
		{"the other refused", k8s.IPv6, func(s *FamilyStatus) { s.LastError = "no such table" }, true},
		{"something new", k8s.IPv4, func(s *FamilyStatus) { s.InStep = false }, false},
	} {
		p.report(step.family, step.change)
		if got := p.Tried(); got != step.want {
			t.Errorf("%s: tried is %t, want %t", step.what, got, step.want)
		}
	}
}
