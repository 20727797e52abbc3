package service

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// hold opens a file so that others may do with it what share allows, until release is called.
func hold(t *testing.T, file string, share uint32) (release func()) {
	t.Helper()
	name, err := windows.UTF16PtrFromString(file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ, share, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() { windows.CloseHandle(h) }
}

// A replacement that fails leaves the program in place, and one that is undone puts it back. An old program in use is moved aside.
func TestExchange(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nkp.exe")
	next := program + ".new"
	for _, suffix := range []string{"", oldSuffix, ".new"} {
		if err := os.WriteFile(program+suffix, []byte("program"+suffix), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	is := func(when, file, want string) {
		t.Helper()
		if have, err := os.ReadFile(file); string(have) != want {
			t.Errorf("%s: %s is %q, %v, want %q", when, file, have, err, want)
		}
	}
	release := hold(t, program, windows.FILE_SHARE_READ)
	x := &exchange{program: program, next: next, had: true}
	if err := x.do(); err == nil {
		t.Error("a locked program was replaced")
	}
	release()
	if err := x.undo(); err != nil {
		t.Error(err)
	}
	is("after a failure", program, "program")

	if err := os.WriteFile(program+oldSuffix, []byte("older"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer hold(t, program+oldSuffix, windows.FILE_SHARE_READ|windows.FILE_SHARE_DELETE)()
	x = &exchange{program: program, next: next, had: true}
	if err := x.do(); err != nil {
		t.Fatal(err)
	}
	is("after the replacement", program, "program.new")
	is("after the replacement", program+oldSuffix, "program")
	if err := x.undo(); err != nil {
		t.Error(err)
	}
	is("after its undo", program, "program")
}

// The first step that fails ends the rest, and its error names it. A dry run takes none.
func TestPerform(t *testing.T) {
	var done []string
	steps := []step{
		{"one", func() error { done = append(done, "one"); return nil }},
		{"two", func() error { return errors.New("broken") }},
		{"three", func() error { done = append(done, "three"); return nil }},
	}
	var out strings.Builder
	if err := perform(&out, true, steps); err != nil || done != nil || out.String() != "one\ntwo\nthree\n" {
		t.Errorf("dry run: %v, %q, printed %q", err, done, out.String())
	}
	err := perform(&out, false, steps)
	if !slices.Equal(done, []string{"one"}) || err == nil || err.Error() != "cannot two: broken" {
		t.Errorf("%q, %v", done, err)
	}
}
