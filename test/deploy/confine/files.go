package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// confineFiles makes a mount namespace with the file system that the unit leaves. What is kept is as it was, even below
// directories that are hidden.
func (s service) confineFiles(keep []string) error {
	if !s.is("ProtectSystem", "strict") {
		return errors.New("only ProtectSystem=strict is known here")
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	kept := map[string]int{} // handles from before anything is hidden
	for _, path := range keep {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		kept[path] = fd
	}
	if err := readOnly("/", true); err != nil {
		return err
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} { // ProtectSystem=strict leaves these
		if err := writable(dir); err != nil {
			return err
		}
	}
	if s.on("PrivateDevices") {
		if err := privateDevices(); err != nil {
			return err
		}
	}
	if s.on("ProtectKernelTunables") {
		for _, dir := range []string{"/proc/sys", "/sys"} {
			if err := readOnly(dir, true); err != nil {
				return err
			}
		}
	}
	for _, path := range s.words("ReadWritePaths") {
		path, optional := strings.CutPrefix(path, "-")
		if err := writable(path); err != nil && !(optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	var hidden []string
	if s.on("PrivateTmp") {
		hidden = append(hidden, "/tmp", "/var/tmp")
	}
	if s.on("ProtectHome") {
		hidden = append(hidden, "/home", "/root", "/run/user")
	}
	if s.on("ProtectKernelModules") {
		hidden = append(hidden, "/usr/lib/modules")
	}
	for _, dir := range hidden {
		if err := hide(dir); err != nil {
			return err
		}
	}
	for path, fd := range kept {
		if err := bringBack(path, fd); err != nil {
			return err
		}
	}
	for _, dir := range hidden {
		if !strings.HasSuffix(dir, "/tmp") {
			if _, err := os.Stat(dir); err == nil {
				if err := readOnly(dir, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// bind mounts a path on itself, so that it can have attributes of its own.
func bind(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &fs.PathError{Op: "bind", Path: path, Err: err}
	}
	return nil
}

func readOnly(path string, recursive bool) error {
	if path != "/" && recursive {
		if err := bind(path); err != nil {
			return err
		}
	}
	return setAttr(path, recursive, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func writable(path string) error {
	if err := bind(path); err != nil {
		return err
	}
	return setAttr(path, true, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

func setAttr(path string, recursive bool, attr *unix.MountAttr) error {
	var flags uint
	if recursive {
		flags = unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, path, flags, attr); err != nil {
		return &fs.PathError{Op: "mount_setattr", Path: path, Err: err}
	}
	return nil
}

// hide covers a directory with an empty one; one that is not there needs nothing.
func hide(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return &fs.PathError{Op: "hide", Path: dir, Err: err}
	}
	return nil
}

// bringBack mounts a file or directory by its handle where it was.
func bringBack(path string, fd int) error {
	handle := "/proc/self/fd/" + strconv.Itoa(fd)
	info, err := os.Stat(handle)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // it is hidden
		if info.IsDir() {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, nil, 0o755)
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Mount(handle, path, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "bring back", Path: path, Err: err}
	}
	attr := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if !info.IsDir() {
		attr = &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return setAttr(path, false, attr)
}

// privateDevices leaves the devices that are none: null and the like.
func privateDevices() error {
	names := []string{"null", "zero", "full", "random", "urandom", "tty"}
	fds := map[string]int{}
	for _, n := range names {
		fd, err := unix.Open("/dev/"+n, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		fds[n] = fd
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	for n, fd := range fds {
		if err := os.WriteFile("/dev/"+n, nil, 0o644); err != nil {
			return err
		}
		if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), "/dev/"+n, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/dev/%s: %w", n, err)
		}
	}
	return setAttr("/dev", false, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}
