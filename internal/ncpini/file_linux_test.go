package ncpini

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What could never be opened, such as a named pipe that nobody writes to, is an error at once.
func TestLoadWantsAFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "ncp.ini")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a named pipe: %v", err)
	}
}
