package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// onlyAdministrators is the security descriptor of the directory: only SYSTEM and Administrators may use it
// and its contents. Without one, every user may add files to a directory below %ProgramData%, and whoever
// writes the state file controls what nkp deletes.
const onlyAdministrators = "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)"

// otherPlace ends the errors.
const otherPlace = "choose another place with --hns-state-file"

// MakeDir makes the directory of a state file for SYSTEM and Administrators only. A directory that exists is
// left as it is; the error says so if others may change it.
func MakeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	sd, err := windows.SecurityDescriptorFromString(onlyAdministrators)
	if err != nil {
		return err
	}
	sa := windows.SecurityAttributes{SecurityDescriptor: sd}
	sa.Length = uint32(unsafe.Sizeof(sa))
	if err := windows.CreateDirectory(name, &sa); err != nil && !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return fmt.Errorf("cannot make the directory %s: %w", dir, err)
	}
	return CheckDir(dir)
}

// CheckDir returns an error if others than SYSTEM, Administrators and nkp's own user may change or replace
// the directory, so that what is in it may be theirs. A directory that does not exist is an error that wraps
// fs.ErrNotExist.
func CheckDir(dir string) error {
	if err := CheckAbove(dir); err != nil {
		return fmt.Errorf("%w: nkp does not use it. Take that right away (icacls), or %s", err, otherPlace)
	}
	return checkPath(dir, "directory")
}

// CheckFile returns the same for a file and its directory.
func CheckFile(file string) error {
	if err := CheckDir(filepath.Dir(file)); err != nil {
		return err
	}
	return checkPath(file, "file")
}

func checkPath(path, kind string) error {
	err := CheckPath(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("the %s %w: nkp does not use it. Delete it (nkp recreates it), or %s",
		kind, err, otherPlace)
}
