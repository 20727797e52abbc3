package service

import (
	"os"
	"path/filepath"
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
func TestSwap(t *testing.T) {
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
	s := swap(program, next, true)
	if err := s.do(); err == nil {
		t.Error("a locked program was replaced")
	}
	release()
	if err := s.undo(); err != nil {
		t.Error(err)
	}
	is("after a failure", program, "program")

	if err := os.WriteFile(program+oldSuffix, []byte("older"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer hold(t, program+oldSuffix, windows.FILE_SHARE_READ|windows.FILE_SHARE_DELETE)()
	s = swap(program, next, true)
	if err := s.do(); err != nil {
		t.Fatal(err)
	}
	is("after the replacement", program, "program.new")
	is("after the replacement", program+oldSuffix, "program")
	if err := s.undo(); err != nil {
		t.Error(err)
	}
	is("after its undo", program, "program")
}
