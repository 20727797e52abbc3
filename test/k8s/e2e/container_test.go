package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// containerCommand is the first argument with which this program starts itself as a container.
const containerCommand = "container"

// containerSpec is what a container runtime makes of a container of a pod: a root that holds the program and the mounts, and nothing
// else of this machine; its capabilities; and its network, which is that of whoever starts it. What it leaves out: a PID namespace,
// cgroups and seccomp.
type containerSpec struct {
	Root         string // a directory, empty
	Program      string // on this machine; in the container it is /nkp
	Args, Env    []string
	Mounts       []containerMount
	Capabilities []int // nil: all
}

type containerMount struct {
	From, To string
	ReadOnly bool
}

// runContainer becomes the container that a file describes. It returns only if that fails.
func runContainer(file string) error {
	runtime.LockOSThread()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s containerSpec
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if err := s.mount(); err != nil {
		return err
	}
	if err := unix.Chroot(s.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}

	if s.Capabilities != nil {
		for c := 0; unix.Prctl(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0) == nil; c++ {
			if !slices.Contains(s.Capabilities, c) {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
					return fmt.Errorf("drop capability %d: %w", c, err)
				}
			}
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	err = unix.Exec("/nkp", append([]string{"/nkp"}, s.Args...), s.Env)
	return fmt.Errorf("start /nkp, which must be linked statically, as in its image: %w", err)
}

// mount makes the container's root in a mount namespace of its own.
func (s *containerSpec) mount() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount("tmpfs", s.Root, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	proc := filepath.Join(s.Root, "proc")
	if err := os.Mkdir(proc, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	mounts := append([]containerMount{{s.Program, "/nkp", true}}, s.Mounts...)
	if s.Capabilities != nil { // as container runtimes have it
		mounts = append(mounts, containerMount{filepath.Join(proc, "sys"), "/proc/sys", true})
	}
	for _, m := range mounts {
		if err := s.bind(m); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
		}
	}
	return unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func (s *containerSpec) bind(m containerMount) error {
	info, err := os.Stat(m.From)
	if err != nil {
		return err
	}
	to := filepath.Join(s.Root, m.To)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if _, there := os.Stat(to); there != nil {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(m.From, to, "", unix.MS_BIND, ""); err != nil || !m.ReadOnly {
		return err
	}
	return unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}
