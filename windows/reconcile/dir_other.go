//go:build !windows

package reconcile

import "os"

// MakeDir makes the directory of a state file, if it is not there.
func MakeDir(dir string) error { return os.MkdirAll(dir, 0o755) }

// CheckDir returns nil: rights are checked on Windows only.
func CheckDir(string) error { return nil }

func checkFile(string) error { return nil }
