package reconcile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// The directory of the state file is there afterwards, also if it was before, and lets in nobody but SYSTEM and Administrators.
func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "nkp")
	for range 2 {
		if err := MakeDir(dir); err != nil {
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
