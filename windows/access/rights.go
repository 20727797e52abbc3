package access

import (
	"fmt"
	"path/filepath"
	"slices"
)

// Types and a flag of entries in access lists (winnt.h). All four types have a mask and a SID at the same
// place.
const (
	aceAllowed         = 0
	aceDenied          = 1
	aceAllowedCallback = 9
	aceDeniedCallback  = 10

	inheritOnly = 0x8 // INHERIT_ONLY_ACE
)

// place is where a file or directory is, seen from what nkp uses.
type place int

const (
	itself place = iota // nobody else may change it
	// parent is a directory above: nobody else may put another in its place, or in that of what is in it.
	parent
	root // as parent, but a volume's root can be neither deleted nor renamed
)

// rights are the rights that change a file, a directory, what is in it, or who may do so (winnt.h), each with
// the farthest place where it matters. Those for itself only add to a directory, and GENERIC_WRITE stands for
// such rights only. With FILE_WRITE_ATTRIBUTES an empty directory can be turned into a junction, but a
// directory above is not empty.
var rights = []struct {
	name string
	mask uint32
	upTo place
}{
	{"FILE_DELETE_CHILD", 0x40, root},
	{"DELETE", 0x10000, parent},
	{"WRITE_DAC", 0x40000, root},
	{"WRITE_OWNER", 0x80000, root},
	{"MAXIMUM_ALLOWED", 0x2000000, root},
	{"GENERIC_ALL", 0x10000000, root},
	{"FILE_WRITE_DATA", 0x2, itself},
	{"FILE_APPEND_DATA", 0x4, itself},
	{"FILE_WRITE_EA", 0x10, itself},
	{"FILE_WRITE_ATTRIBUTES", 0x100, itself},
	{"GENERIC_WRITE", 0x40000000, itself},
}

// granted returns the first right by which an entry of an access list allows a change, "" for none. Entries
// that are only inherited count for itself too, because files that nkp creates in it have them.
func granted(kind, flags uint8, mask uint32, where place) (string, error) {
	switch {
	case where != itself && flags&inheritOnly != 0, kind == aceDenied, kind == aceDeniedCallback:
		return "", nil
	case kind != aceAllowed && kind != aceAllowedCallback:
		return "", fmt.Errorf("has an entry of type %d in its access list, which nkp does not read", kind)
	}
	for _, r := range rights {
		if mask&r.mask != 0 && r.upTo >= where {
			return r.name, nil
		}
	}
	return "", nil
}

// above returns the directories above an absolute path, the root of its volume first.
func above(path string) (dirs []string) {
	for dir := filepath.Dir(path); dir != path; dir = filepath.Dir(dir) {
		path = dir
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}
