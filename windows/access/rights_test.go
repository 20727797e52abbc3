package access

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGranted checks which entries of an access list allow a change, and which a replacement. The masks of what Windows sets up are from
// its defaults: adding to a directory replaces nothing in it.
func TestGranted(t *testing.T) {
	const containerInherit = 0x2
	for _, c := range []struct {
		what           string
		kind, flags    uint8
		mask           uint32
		itself, parent string
	}{
		{"full control", aceAllowed, 0, 0x1f01ff, "FILE_DELETE_CHILD", "FILE_DELETE_CHILD"},
		{"modify", aceAllowed, 0, 0x1301bf, "DELETE", "DELETE"},
		{"write access list", aceAllowed, 0, 0x40000, "WRITE_DAC", "WRITE_DAC"},
		{"take ownership", aceAllowed, 0, 0x80000, "WRITE_OWNER", "WRITE_OWNER"},
		{"generic all", aceAllowed, 0, 0x10000000, "GENERIC_ALL", "GENERIC_ALL"},
		{"maximum allowed", aceAllowed, 0, 0x2000000, "MAXIMUM_ALLOWED", "MAXIMUM_ALLOWED"},
		{"a callback that allows", aceAllowedCallback, 0, 0x40, "FILE_DELETE_CHILD", "FILE_DELETE_CHILD"},
		{"read and execute", aceAllowed, 0, 0x1200a9, "", ""},
		{"C:\\: add directories", aceAllowed, containerInherit, 0x4, "FILE_APPEND_DATA", ""},
		{"%ProgramData%: add files and directories", aceAllowed, containerInherit, 0x116, "FILE_WRITE_DATA", ""},
		{"generic write", aceAllowed, 0, 0x40000000, "GENERIC_WRITE", ""},
		{"C:\\: modify, for what is made in it", aceAllowed, inheritOnly, 0xe0010000, "DELETE", ""},
		{"denied", aceDenied, 0, 0x1f01ff, "", ""},
		{"a callback that denies", aceDeniedCallback, 0, 0x1f01ff, "", ""},
	} {
		atRoot := c.parent
		if atRoot == "DELETE" {
			atRoot = ""
		}
		for where, want := range []string{itself: c.itself, parent: c.parent, root: atRoot} {
			if have, err := granted(c.kind, c.flags, c.mask, place(where)); err != nil || have != want {
				t.Errorf("%s, at place %d: %q, %v, want %q", c.what, where, have, err, want)
			}
		}
	}
	if _, err := granted(5, 0, 0x40, parent); err == nil || !strings.Contains(err.Error(), "type 5") {
		t.Errorf("an entry of an object: %v", err)
	}
}

// TestAbove checks which directories are above a path: the root first, never the path itself.
func TestAbove(t *testing.T) {
	top, err := filepath.Abs("/")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want []string }{
		{nil, nil},
		{[]string{"k"}, []string{top}},
		{[]string{"k", "nkp", "bin"}, []string{top, filepath.Join(top, "k"), filepath.Join(top, "k", "nkp")}},
	} {
		path := filepath.Join(append([]string{top}, c.path...)...)
		if have := above(path); !slices.Equal(have, c.want) {
			t.Errorf("above %s: %q, want %q", path, have, c.want)
		}
	}
}
