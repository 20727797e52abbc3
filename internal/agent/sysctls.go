package agent

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/nkp-proxy/nkp/internal/sysctl"
)

// sysctlFile remembers which kernel settings nkp has changed since the node booted, so that cleanup can
// restore them.
func (s *Settings) sysctlFile() string { return filepath.Join(s.modeDir(), "sysctls") }

// ApplySysctls applies the conntrack settings, and records what that changed. It returns one warning for each
// failure.
func (s *Settings) ApplySysctls(log *slog.Logger) (warnings []string) {
	changes, warnings := sysctl.Apply(s.Conntrack, log)
	s.recordSysctls(changes, log)
	return warnings
}

// reservePorts keeps ports for masquerading from the node's own connections, and records that.
func (s *Settings) reservePorts(lo, hi int, log *slog.Logger) error {
	c, err := sysctl.ReservePorts(lo, hi, log)
	if err == nil {
		s.recordSysctls([]sysctl.Change{c}, log)
	}
	return err
}

func (s *Settings) recordSysctls(changes []sysctl.Change, log *slog.Logger) {
	if len(changes) == 0 || s.Socket == "" {
		return
	}
	if err := s.saveSysctls(changes); err != nil {
		log.Warn("cannot record the changed sysctls: nkp cleanup will not restore them", "error", err)
	}
}

// saveSysctls adds changes to the record. A setting that nkp had changed before, and nothing else since,
// keeps its first value.
func (s *Settings) saveSysctls(changes []sysctl.Change) error {
	all := s.changedSysctls()
	for _, c := range changes {
		i := slices.IndexFunc(all, func(o sysctl.Change) bool { return o.Name == c.Name })
		switch {
		case i < 0:
			all = append(all, c)
		case all[i].To == c.From:
			all[i].To = c.To
		default:
			all[i] = c
		}
	}
	if err := s.makeModeDir(); err != nil {
		return err
	}
	return s.writeSysctls(all)
}

func (s *Settings) writeSysctls(all []sysctl.Change) error {
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	temporary := s.sysctlFile() + ".new" // a half-written record would lose the values to restore
	if err := os.WriteFile(temporary, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, s.sysctlFile())
}

// changedSysctls returns the record; nil if there is none.
func (s *Settings) changedSysctls() (all []sysctl.Change) {
	if s.Socket == "" || s.checkModeDir() != nil {
		return nil
	}
	if data, err := os.ReadFile(s.sysctlFile()); err == nil && json.Unmarshal(data, &all) != nil {
		return nil
	}
	return all
}

// RestoreSysctls restores the recorded settings that nothing else has changed since. It returns a line for
// each, and the number of those that it could not restore. They stay recorded.
func (s *Settings) RestoreSysctls() (lines []string, failed int, err error) {
	all := s.changedSysctls()
	if len(all) == 0 {
		return nil, 0, nil
	}
	lines, left := sysctl.Restore(all)
	if len(left) > 0 {
		return lines, len(left), s.writeSysctls(left)
	}
	return lines, 0, os.Remove(s.sysctlFile())
}

// KeepSysctls forgets the recorded settings without restoring them, and returns their names.
func (s *Settings) KeepSysctls() (names []string, err error) {
	for _, c := range s.changedSysctls() {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return nil, nil
	}
	return names, os.Remove(s.sysctlFile())
}
