//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// otherSwitch is the prefix below which NKP_OVS says that an Open vSwitch is installed: its programs in PREFIX/bin and
// PREFIX/sbin, the schema in PREFIX/share/openvswitch. "" stands for the system's.
var otherSwitch = os.Getenv("NKP_OVS")

// Upgrades are the prefixes, as of NKP_OVS, that NKP_OVS_UPGRADES names in the order in which a test of upgrades replaces the
// switch, separated by colons. An empty one stands for the system's.
func Upgrades() []string {
	if list, ok := os.LookupEnv("NKP_OVS_UPGRADES"); ok {
		return strings.Split(list, ":")
	}
	return nil
}

// schemaFiles are where packages of Open vSwitch put the database schema.
var schemaFiles = []string{
	"/usr/share/openvswitch/vswitch.ovsschema",
	"/usr/local/share/openvswitch/vswitch.ovsschema",
}

// lookPath finds a program: the switch's own below prefix if there is one, all else in PATH or in the system
// directories that a plain user's PATH often leaves out.
func lookPath(prefix, name string) (string, error) {
	if prefix != "" && slices.Contains(programs, name) {
		for _, dir := range []string{"sbin", "bin"} {
			if p, err := exec.LookPath(filepath.Join(prefix, dir, name)); err == nil {
				return p, nil
			}
		}
		return "", fmt.Errorf("%s: not in bin or sbin of %s", name, prefix)
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"} {
		if p, err := exec.LookPath(dir + "/" + name); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: not found", name)
}

// schema returns the file of the database's schema, of the switch below prefix.
func schema(prefix string) (string, error) {
	files := schemaFiles
	if prefix != "" {
		files = []string{filepath.Join(prefix, "share/openvswitch/vswitch.ovsschema")}
	}
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
	}
	return "", errors.New(files[0])
}

// UseSwitch makes the bed start the programs of the Open vSwitch below prefix from now on, as NKP_OVS does for all beds. The
// database's server must be stopped: its file gets that version's schema and number, as ovs-ctl does it.
func (b *Bed) UseSwitch(prefix string) error {
	b.ovs = prefix
	file, err := schema(prefix)
	if err != nil {
		return err
	}
	needs, _, err := b.run("ovsdb-tool", "needs-conversion", b.DBFile(), file)
	if err != nil {
		return err
	}
	if strings.TrimSpace(needs) == "yes" {
		if _, _, err := b.run("ovsdb-tool", "convert", b.DBFile(), file); err != nil {
			return err
		}
	}
	_, _, err = b.run("ovsdb-tool", "transact", b.DBFile(),
		fmt.Sprintf(`["Open_vSwitch",{"op":"update","table":"Open_vSwitch","where":[],"row":{"ovs_version":%q}}]`, b.Version()))
	return err
}

// Version is what ovs-vswitchd calls itself, such as 3.1.0; "" if it does not say.
func (b *Bed) Version() string {
	out, _, err := b.run("ovs-vswitchd", "--version")
	line, _, _ := strings.Cut(out, "\n")
	if f := strings.Fields(line); err == nil && len(f) > 0 {
		return f[len(f)-1]
	}
	return ""
}

// Since reports whether the switch's version is MAJOR.MINOR or later, for tests of what older ones do not have.
func (b *Bed) Since(major, minor int) bool {
	parts := strings.SplitN(b.Version(), ".", 3)
	if len(parts) < 2 {
		return true
	}
	x, err1 := strconv.Atoi(parts[0])
	y, err2 := strconv.Atoi(parts[1])
	return err1 != nil || err2 != nil || x > major || x == major && y >= minor
}
