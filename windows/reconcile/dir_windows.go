package reconcile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// onlyAdministrators is the security descriptor of the directory: SYSTEM and Administrators may use it and what is in it. What
// is made below %ProgramData% without one may be added to by every user, and whoever writes the state file says what nkp deletes.
const onlyAdministrators = "D:P(A;OICI;GA;;;SY)(A;OICI;GA;;;BA)"

// MakeDir makes the directory of a state file, if it is not there, for SYSTEM and Administrators only.
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
	return nil
}
