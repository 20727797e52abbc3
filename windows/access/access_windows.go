package access

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// trustedInstaller is the SID of the service that owns what came with Windows.
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// CheckPath returns an error if anyone but SYSTEM, Administrators and the process's own user may change the
// file or directory, or if it is a junction or another link. CheckAbove checks the directories above it.
func CheckPath(path string) error { return inspect(path, itself) }

// CheckAbove returns an error if a directory above the path is a link, or if a user whom CheckPath does not
// trust may replace it, or replace a file or directory in it. A right to add files is no error, because C:\
// and %ProgramData% give it to all users. Directories that do not exist are not checked. The check begins at
// the volume's root, so that no directory can be replaced after it was checked. Call CheckAbove before
// CheckPath for the same reason.
func CheckAbove(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for _, dir := range above(path) {
		where := parent
		if dir == filepath.Dir(dir) {
			where = root
		}
		if err := inspect(dir, where); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w, so that %s can be replaced", err, path)
		}
	}
	return nil
}

// inspect checks the rights that matter at one place.
func inspect(path string, where place) error {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	h, err := windows.CreateFile(name, windows.READ_CONTROL|windows.FILE_READ_ATTRIBUTES,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer windows.CloseHandle(h)

	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		return fmt.Errorf("%s is a link to another place", path)
	}

	const what = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION
	sd, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, what)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := check(sd, where); err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	return nil
}

// CheckOwner returns an error if the pipe behind a handle belongs to anyone but SYSTEM, Administrators and
// the process's own user. The handle needs the right READ_CONTROL.
func CheckOwner(pipe windows.Handle) error {
	sd, err := windows.GetSecurityInfo(pipe, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("does not show its owner: %w", err)
	}
	return checkOwner(sd)
}

func checkOwner(sd *windows.SECURITY_DESCRIPTOR) error {
	owner, _, err := sd.Owner()
	if err != nil {
		return err
	}
	if owner == nil {
		return errors.New("has no owner")
	}
	if !trusted(owner) {
		return fmt.Errorf("belongs to %s", name(owner))
	}
	return nil
}

// check returns an error if the owner or an entry of the access list is not to be trusted.
func check(sd *windows.SECURITY_DESCRIPTOR, where place) error {
	if err := checkOwner(sd); err != nil {
		return err
	}

	dacl, _, err := sd.DACL()
	if errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) || err == nil && dacl == nil {
		return errors.New("has no access list, so that every user may change it")
	}
	if err != nil {
		return err
	}

	for i := range uint32(dacl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(dacl, i, &ace); err != nil {
			return err
		}
		right, err := granted(ace.Header.AceType, ace.Header.AceFlags, uint32(ace.Mask), where)
		if err != nil {
			return err
		}
		sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart))
		if right != "" && !trusted(sid) && !sid.IsWellKnown(windows.WinCreatorOwnerSid) {
			return fmt.Errorf("may be changed by %s, which has the right %s", name(sid), right)
		}
	}
	return nil
}

// trusted reports whether a SID can do on this machine what nkp can, or is nkp's own user.
func trusted(sid *windows.SID) bool {
	if sid.IsWellKnown(windows.WinLocalSystemSid) || sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		sid.String() == trustedInstaller {
		return true
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err == nil && sid.Equals(user.User.Sid) {
		return true
	}
	owner, err := tokenOwner()
	return err == nil && sid.Equals(owner)
}

// tokenOwner returns the owner of objects that this process creates: its user, or a group such as
// Administrators (winnt.h, TOKEN_OWNER).
func tokenOwner() (*windows.SID, error) {
	buf := make([]uintptr, 64) // 512 bytes; the pointer and a SID of 68 at most fit
	var n uint32
	err := windows.GetTokenInformation(windows.GetCurrentProcessToken(), windows.TokenOwner,
		(*byte)(unsafe.Pointer(&buf[0])), 512, &n)
	if err != nil {
		return nil, err
	}
	return (*(**windows.SID)(unsafe.Pointer(&buf[0]))).Copy()
}

// name returns a SID with the name it has on this machine. Accounts are not looked up, because a domain's
// controller may be asked for them.
func name(sid *windows.SID) string {
	text := sid.String()
	if strings.HasPrefix(text, "S-1-5-21-") {
		return "the user " + text
	}
	account, domain, _, err := sid.LookupAccount("")
	if err != nil {
		return text
	}
	return strings.TrimPrefix(domain+`\`, `\`) + account + " (" + text + ")"
}
