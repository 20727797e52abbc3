package access

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// TestCheck checks which owners and access lists are trusted. The descriptors are values: what Windows itself makes of them on a
// disk is not asked.
func TestCheck(t *testing.T) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		t.Fatal(err)
	}
	own := user.User.Sid.String()
	const other = "S-1-5-21-1-2-3-1001"
	for sddl, want := range map[string]string{
		"O:SYD:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)":                        "",
		"O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)":                        "",
		"O:" + own + "D:P(A;;FA;;;" + own + ")":                          "",
		"O:" + trustedInstaller + "D:(A;;FA;;;" + trustedInstaller + ")": "",
		"O:BAD:(A;OICI;0x1200a9;;;BU)(A;OICI;GRGX;;;WD)":                 "", // others read
		"O:BAD:(D;OICI;FA;;;WD)":                                         "",
		"O:BAD:(A;OICIIO;GA;;;CO)":                                       "", // whoever makes a file has it; nobody else may
		"O:BAD:":                                                         "", // an empty list lets nobody in
		"O:" + other + "D:P(A;OICI;FA;;;BA)":                             "belongs to the user " + other,
		"O:WDD:P(A;OICI;FA;;;BA)":                                        "belongs to Everyone (S-1-1-0)",
		"O:BA":                                                           "has no access list",
		"D:P(A;OICI;FA;;;BA)":                                            "has no owner",
		"O:BAD:(A;;FA;;;WD)":                                             "may be changed by Everyone (S-1-1-0)",
		"O:BAD:(A;;0x2;;;BU)":                                            "S-1-5-32-545", // add a file, or write
		"O:BAD:(A;;0x4;;;BU)":                                            "S-1-5-32-545", // add a directory, as %ProgramData% allows
		"O:BAD:(A;;0x10;;;BU)":                                           "S-1-5-32-545",
		"O:BAD:(A;;0x40;;;BU)":                                           "S-1-5-32-545", // delete what is in it
		"O:BAD:(A;;0x100;;;BU)":                                          "S-1-5-32-545", // make it a junction
		"O:BAD:(A;;SD;;;AU)":                                             "S-1-5-11",
		"O:BAD:(A;;WD;;;AU)":                                             "S-1-5-11", // write the access list
		"O:BAD:(A;;WO;;;AU)":                                             "S-1-5-11",
		"O:BAD:(A;;GW;;;AU)":                                             "S-1-5-11",
		"O:BAD:(A;;GA;;;" + other + ")":                                  "may be changed by the user " + other,
		"O:BAD:(A;OICIIO;GA;;;BU)":                                       "S-1-5-32-545", // for what is made in it
		"O:BAD:(A;ID;FA;;;BA)(A;ID;FA;;;SY)(A;CIID;0x116;;;BU)":          "S-1-5-32-545", // made by hand below %ProgramData%
	} {
		sd, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Errorf("%s: %v", sddl, err)
			continue
		}
		err = check(sd)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", sddl, err, want)
		}
	}
}

// TestCheckPath checks files and directories on a disk: of SYSTEM and Administrators or of this user, open to all, and absent.
func TestCheckPath(t *testing.T) {
	const closed, open = "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)", "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)(A;OICI;GA;;;WD)"
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, dir} {
		for _, c := range []struct{ sddl, want string }{{closed, ""}, {open, "may be changed by Everyone (S-1-1-0)"}, {closed, ""}} {
			allow(t, path, c.sddl)
			if err := CheckPath(path); c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != path+" "+c.want) {
				t.Errorf("%s with %s: %v, want %q", path, c.sddl, err, c.want)
			}
		}
	}
	if err := CheckPath(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
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

// TestWithoutAccessList checks a list that is there and null: every user has every right (winnt.h, SetSecurityDescriptorDacl).
func TestWithoutAccessList(t *testing.T) {
	sd, err := windows.SecurityDescriptorFromString("O:BAD:P(A;OICI;FA;;;BA)")
	if err != nil {
		t.Fatal(err)
	}
	if sd, err = sd.ToAbsolute(); err != nil {
		t.Fatal(err)
	}
	if err := sd.SetDACL(nil, true, false); err != nil {
		t.Fatal(err)
	}
	if err := check(sd); err == nil || !strings.Contains(err.Error(), "has no access list") {
		t.Errorf("a null list: %v", err)
	}
}

// TestLink checks a junction to a directory that is itself in order, where junctions can be made: under Wine 8 they cannot.
func TestLink(t *testing.T) {
	target, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	allow(t, target, "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)")
	out, err := exec.Command("cmd", "/c", "mklink", "/J", link, target).CombinedOutput()
	if _, missing := os.Lstat(link); missing != nil {
		t.Logf("no junction could be made, none is checked: %v: %s", err, out)
		return
	}
	if err := CheckPath(link); err == nil || !strings.Contains(err.Error(), "is a link to another place") {
		t.Errorf("a junction: %v", err)
	}
}
