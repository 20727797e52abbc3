package service

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A step that fails is undone with all before it, last first; all errors are reported; a dry run changes nothing.
func TestPerform(t *testing.T) {
	var log []string
	note := func(what string, err error) func() error {
		return func() error { log = append(log, what); return err }
	}
	steps := []step{
		{"one", note("do 1", nil), note("undo 1", errors.New("stuck"))},
		{"two", note("do 2", nil), nil},
		{"three", note("do 3", errors.New("broken")), note("undo 3", nil)},
		{"four", note("do 4", nil), note("undo 4", nil)},
	}
	var out strings.Builder
	if err := perform(&out, true, steps); err != nil || log != nil || out.String() != "one\ntwo\nthree\nfour\n" {
		t.Errorf("dry run: %v, %q, printed %q", err, log, out.String())
	}
	err := perform(&out, false, steps)
	if want := []string{"do 1", "do 2", "do 3", "undo 3", "undo 1"}; !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
	if err == nil || err.Error() != "cannot three: broken; cannot undo \"one\": stuck" {
		t.Error(err)
	}
}
