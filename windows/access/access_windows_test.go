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
		"O:BAD:(A;;FA;;;WD)":                                             "may be changed by Everyone (S-1-1-0), which has the right FILE_DELETE_CHILD",
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
		err = check(sd, itself)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", sddl, err, want)
		}
	}
}

// TestReplaced checks access lists of directories above. Those that Windows sets up are in order.
func TestReplaced(t *testing.T) {
	for sddl, want := range map[string]string{
		// C:\ of a client and of a server, C:\Program Files, C:\ProgramData, a directory made on a server's C:\.
		"O:" + trustedInstaller + "D:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICIIO;SDGXGWGR;;;AU)(A;;LC;;;AU)(A;OICI;0x1200a9;;;BU)":                         "",
		"O:" + trustedInstaller + "D:PAI(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;CI;LC;;;BU)(A;CIIO;DC;;;BU)(A;OICI;0x1200a9;;;BU)(A;OICIIO;GA;;;CO)":             "",
		"O:" + trustedInstaller + "D:PAI(A;;FA;;;" + trustedInstaller + ")(A;;0x1301bf;;;SY)(A;;0x1301bf;;;BA)(A;OICIIO;GA;;;CO)(A;;0x1200a9;;;S-1-15-2-1)": "",
		"O:SYD:PAI(A;OICIIO;GA;;;CO)(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1200a9;;;BU)(A;CI;DCLCRPCR;;;BU)":                                             "",
		"O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)(A;CIID;LC;;;BU)(A;CIID;DC;;;BU)(A;OICIID;0x1200a9;;;BU)(A;OICIIOID;GA;;;CO)":                          "",

		"O:BAD:AI(A;OICIID;FA;;;BA)(A;ID;0x1301bf;;;AU)(A;OICIIOID;SDGXGWGR;;;AU)": "may be changed by NT AUTHORITY\\Authenticated Users (S-1-5-11), which has the right DELETE", // made on a client's C:\
		"O:BAD:(A;;0x40;;;BU)":               "S-1-5-32-545), which has the right FILE_DELETE_CHILD",
		"O:BAD:(A;;WD;;;BU)":                 "which has the right WRITE_DAC",
		"O:BAD:(A;;WO;;;BU)":                 "which has the right WRITE_OWNER",
		"O:BAD:(A;;GA;;;S-1-5-21-1-2-3-44)":  "may be changed by the user S-1-5-21-1-2-3-44, which has the right ",
		"O:S-1-5-21-1-2-3-44D:P(A;;FA;;;BA)": "belongs to the user S-1-5-21-1-2-3-44",
		"O:BA":                               "has no access list",
	} {
		sd, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Errorf("%s: %v", sddl, err)
			continue
		}
		err = check(sd, parent)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", sddl, err, want)
		}
	}
}

// TestCheckAbove checks directories on a disk above one that is itself in order.
func TestCheckAbove(t *testing.T) {
	const closed, open = "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)", "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)(A;OICI;GA;;;WD)"
	top := t.TempDir()
	middle := filepath.Join(top, "middle")
	dir := filepath.Join(middle, "nkp")
	for _, d := range []string{middle, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		allow(t, d, closed)
	}
	for _, path := range []string{dir, filepath.Join(dir, "none", "nkp")} { // one that is there, one that is not
		for _, d := range []string{top, middle} {
			allow(t, d, closed)
			if err := CheckAbove(path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			allow(t, d, open)
			err := CheckAbove(path)
			if err == nil || !strings.HasPrefix(err.Error(), d+" may be changed by Everyone (S-1-1-0), which has the right ") || !strings.HasSuffix(err.Error(), path+" can be replaced") {
				t.Errorf("%s below %s, which is open: %v", path, d, err)
			}
			if err := CheckPath(dir); err != nil {
				t.Errorf("what is below %s: %v", d, err)
			}
			allow(t, d, closed)
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
			if err := CheckPath(path); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+" "+c.want)) {
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
	if err := check(sd, itself); err == nil || !strings.Contains(err.Error(), "has no access list") {
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
	for what, err := range map[string]error{"a junction": CheckPath(link), "a file below it": CheckAbove(filepath.Join(link, "file"))} {
		if err == nil || !strings.Contains(err.Error(), "is a link to another place") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
