package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/mode"
)

// modeFile remembers which data planes the last run worked with, a word each.
func (s *Settings) modeFile() string { return filepath.Join(s.modeDir(), "mode") }

// LastModes returns the data planes of the last run on this node since it booted; none: nothing is known. The
// first is the main one.
func (s *Settings) LastModes() []mode.Mode {
	if s.Socket == "" || s.checkModeDir() != nil {
		return nil
	}
	text, err := os.ReadFile(s.modeFile())
	if err != nil {
		return nil
	}
	var modes []mode.Mode
	for word := range strings.FieldsSeq(string(text)) {
		modes = append(modes, mode.Mode(word))
	}
	return modes
}

// recordModes remembers the data planes of this run.
func (s *Settings) recordModes(modes ...mode.Mode) error {
	if s.Socket == "" {
		return nil
	}
	words := make([]string, len(modes))
	for i, m := range modes {
		words[i] = string(m)
	}
	if err := s.makeModeDir(); err != nil {
		return err
	}
	return os.WriteFile(s.modeFile(), []byte(strings.Join(words, " ")+"\n"), 0o644)
}

// ForgetModes deletes the record. It is for use when nothing of nkp is left on the node.
func (s *Settings) ForgetModes() {
	if s.Socket != "" && s.checkModeDir() == nil {
		os.Remove(s.modeFile())
	}
}

// changedFrom returns the main data plane of the last run if this run's is another; "": it is the same, or
// not known.
func (s *Settings) changedFrom(m mode.Mode) mode.Mode {
	last := s.LastModes()
	if len(last) == 0 || slices.Contains(last[:1], m) {
		return ""
	}
	return last[0]
}
