//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempDir is a directory with a locked file. The lock distinguishes a directory in use
// from one whose process was killed, which the next bed removes.
type tempDir struct {
	path string
	lock *os.File
}

const (
	dirPattern = "nkpbed-"
	lockName   = "lock"
)

func newTempDir(parent string) (*tempDir, error) {
	sweep(parent)
	path, err := os.MkdirTemp(parent, dirPattern)
	if err != nil {
		return nil, fmt.Errorf("testbed: %w", err)
	}
	d := &tempDir{path: path}
	if d.lock, err = os.Create(filepath.Join(path, lockName+".new")); err == nil {
		if err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX); err == nil {
			// Under its name it has been locked all along: sweep never sees it free.
			err = os.Rename(d.lock.Name(), filepath.Join(path, lockName))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("testbed: %w", err), d.remove())
	}
	return d, nil
}

func (d *tempDir) remove() error {
	err := os.RemoveAll(d.path)
	if d.lock != nil {
		_ = d.lock.Close()
	}
	return err
}

// sweep removes directories of beds whose process is gone.
func sweep(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, dirPattern+"*", lockName))
	for _, name := range locks {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = f.Close()
	}
}
