package reconcile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/nkp-proxy/nkp/windows/access"
)

// The directory of the state file is there afterwards, also if it was before, and lets in nobody but SYSTEM and Administrators.
func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "nkp")
	for range 2 {
		if err := access.MakeDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "hns.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sd, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	for _, others := range []string{";;;WD)", ";;;BU)", ";;;AU)"} { // Everyone, Users, Authenticated Users
		if strings.Contains(sd.String(), others) {
			t.Errorf("others are let in: %s", sd)
		}
	}
}

// allow replaces the access list of a file or directory.
func allow(t *testing.T, path, sddl string) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		t.Fatal(err)
	}
	dacl, _, err := sd.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil); err != nil {
		t.Fatal(err)
	}
}

const (
	onlyAdministrators = "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)"
	everyone           = onlyAdministrators + "(A;OICI;GA;;;WD)"
)

// TestOthersDirectory checks that nkp neither reads nor writes in a directory that other users may change, and leaves it as it is.
func TestOthersDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nkp")
	f := StateFile(filepath.Join(dir, "hns.json"))
	mine := newOwnership()
	mine.Endpoints["e"] = true
	if err := f.Save(mine); err != nil {
		t.Fatal(err)
	}
	if o, err := f.Load(); err != nil || !o.Endpoints["e"] {
		t.Fatalf("its own file: %v, %v", o, err)
	}
	allow(t, dir, everyone)
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "may be changed by") || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "Delete it") {
			t.Errorf("%s in a directory that everyone may change: %v", what, err)
		}
	}
	refused("MakeDir", access.MakeDir(dir))
	refused("Save", f.Save(mine))
	o, err := f.Load()
	refused("Load", err)
	if len(o.Endpoints) != 0 {
		t.Errorf("Load in a directory that everyone may change: %v", o.Endpoints)
	}
	if err := access.MakeDir(dir); err == nil {
		t.Error("a second look finds nothing wrong with it")
	}
	// Mended, it is used again; but not a file in it that others may change.
	allow(t, dir, onlyAdministrators)
	if o, err := f.Load(); err != nil || !o.Endpoints["e"] {
		t.Errorf("mended: %v, %v", o, err)
	}
	allow(t, string(f), everyone)
	if o, err := f.Load(); err == nil || !strings.Contains(err.Error(), "the file "+string(f)+" may be changed by") || len(o.Endpoints) != 0 {
		t.Errorf("a file that everyone may change: %v, %v", o, err)
	}
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
	if o, err := f.Load(); err != nil || len(o.Endpoints) != 0 {
		t.Errorf("no file: %v, %v", o, err)
	}
	if err := access.CheckDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestBelowOthersDirectory checks that nkp uses no directory that others can replace, although only administrators may change it.
func TestBelowOthersDirectory(t *testing.T) {
	above := filepath.Join(t.TempDir(), "above")
	f := StateFile(filepath.Join(above, "nkp", "hns.json"))
	mine := newOwnership()
	mine.Endpoints["e"] = true
	if err := f.Save(mine); err != nil {
		t.Fatal(err)
	}
	allow(t, above, everyone)
	_, load := f.Load()
	for what, err := range map[string]error{"Save": f.Save(mine), "Load": load} {
		if err == nil || !strings.HasPrefix(err.Error(), above+" may be changed by Everyone") || !strings.Contains(err.Error(), "can be replaced: nkp does not use it. Take") {
			t.Errorf("%s below a directory that everyone may change: %v", what, err)
		}
	}
	allow(t, above, onlyAdministrators)
	if o, err := f.Load(); err != nil || !o.Endpoints["e"] {
		t.Errorf("mended: %v, %v", o, err)
	}
}
