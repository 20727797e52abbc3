//go:build linux

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// saved are flows and groups as ovs-ofctl dumps and takes them.
type saved struct {
	flows, groups string
	meters        []string
}

// save does what ovs-save does before Open vSwitch's own restart. That one forgets meters, so that it cannot restore flows
// which use one: here they are added to what it saves. It can also save flows whose groups are gone by the time that it comes
// to those, and none is restored then: here the groups must be the same before and after.
func (c *cluster) save() (s saved, err error) {
	var flows, groups string
	for range saveTries {
		before, err := c.Ofctl("--no-names", "dump-groups", c.Bridge)
		if err != nil {
			return s, err
		}
		if flows, err = c.Ofctl("--no-names", "--no-stats", "dump-flows", c.Bridge); err != nil {
			return s, err
		}
		if groups, err = c.Ofctl("--no-names", "dump-groups", c.Bridge); err != nil {
			return s, err
		}
		if body(groups) == body(before) {
			break
		}
		groups = ""
	}
	if groups == "" {
		return s, fmt.Errorf("the groups of %s change all the time: %d dumps of the flows met none that stood still", c.Bridge, saveTries)
	}
	meters, err := c.Ofctl("dump-meters", c.Bridge)
	s = saved{flows: body(flows), groups: body(groups)}
	for _, m := range strings.Split(body(meters), "meter=")[1:] { // 7 pktps burst bands=\n type=drop rate=1 burst_size=1
		head, bands, _ := strings.Cut(m, "bands=")
		s.meters = append(s.meters, "meter="+strings.Join(strings.Fields(head), ",")+",band="+strings.Join(strings.Fields(bands), ","))
	}
	return s, err
}

// saveTries is how often flows are dumped at most while groups change.
const saveTries = 50

// body is a dump without the line that heads it.
func body(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, "OFPST_") && !strings.HasPrefix(line, "NXST_") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// startRestoring starts ovs-vswitchd with flow-restore-wait, which lets no packet through, has restore bring the flows back,
// and takes the setting away (ovs-vswitchd.conf.db(5), Open_vSwitch other_config:flow-restore-wait).
func (c *cluster) startRestoring(restore func() error) error {
	if _, err := c.Vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true"); err != nil {
		return err
	}
	err := c.StartVswitchd()
	if err == nil {
		err = restore()
	}
	_, last := c.Vsctl("--if-exists", "remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait")
	return errors.Join(err, last)
}

// restore does what the script of ovs-save does after the restart: groups, then flows, each in a bundle, whether or not the one
// before went well.
func (c *cluster) restore(s saved) error {
	dir, err := os.MkdirTemp(c.RunDir, "saved")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	groups, flows := filepath.Join(dir, "groups"), filepath.Join(dir, "flows")
	if err := errors.Join(os.WriteFile(groups, []byte(s.groups), 0o600), os.WriteFile(flows, []byte(s.flows), 0o600)); err != nil {
		return err
	}
	for _, m := range s.meters {
		if _, err := c.Ofctl("add-meter", c.Bridge, m); err != nil && !strings.Contains(err.Error(), "METER_EXISTS") {
			return err
		}
	}
	_, err = c.Ofctl("add-groups", c.Bridge, groups, "--bundle")
	_, last := c.Ofctl("replace-flows", c.Bridge, flows, "--bundle")
	return errors.Join(err, last)
}
