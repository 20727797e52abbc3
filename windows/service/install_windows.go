package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/nkp-proxy/nkp/windows/access"
)

// prefixArgs are the arguments of the service before the flags of run.
var prefixArgs = []string{"run", "--windows-service"}

// Files beside the program: the one that it replaced, and those that are to replace it, which end in .exe so that they can be run.
const (
	oldSuffix = ".old"
	nextFiles = Name + "-*.new.exe"
)

// cleanupTime bounds a program that removes what it made in HNS, which itself gives up after 10 minutes.
const cleanupTime = 11 * time.Minute

// installation is what Install, Upgrade and Uninstall work on.
type installation struct {
	Config
	m      *mgr.Mgr
	s      *existing // nil: not installed
	was    settings  // of s
	record Record
	ran    bool // s was running before
}

func open(c Config) (*installation, error) {
	m, err := connect()
	if err != nil {
		return nil, err
	}
	i := &installation{Config: c, m: m}
	if i.s, err = find(m, Name); err == nil && i.s != nil {
		if i.was, err = i.s.settings(); err == nil {
			i.ran, err = i.s.running()
		}
	}
	if err == nil {
		i.record, err = readRecord()
	}
	if err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (i *installation) close() {
	if i.s != nil {
		i.s.Close()
	}
	i.m.Disconnect()
}

// Install copies a program, registers it as a service that starts with the system and is restarted when it fails, and starts it. If the
// service exists, Install changes it. Everything is checked first; what was done is undone if a step fails or the service does not serve.
func Install(ctx context.Context, c Config) error {
	i, err := open(c)
	if err != nil {
		return err
	}
	defer i.close()
	if i.Directory == "" {
		programs, err := windows.KnownFolderPath(windows.FOLDERID_ProgramFiles, 0)
		if err != nil {
			return err
		}
		i.Directory = filepath.Join(programs, Name)
	}
	if i.Directory, err = filepath.Abs(i.Directory); err != nil {
		return err
	}
	return i.install(ctx)
}

// Upgrade replaces the program of the installed service and keeps everything else. If the new program does not serve, it restores the
// old one.
func Upgrade(ctx context.Context, c Config) error {
	i, err := open(c)
	if err != nil {
		return err
	}
	defer i.close()
	if i.s == nil {
		return fmt.Errorf("the service %q is not installed: nkp windows-service install", Name)
	}
	program, args, err := decompose(i.was.command)
	if err != nil {
		return err
	}
	i.Directory, i.Args, i.DependsOn = filepath.Dir(program), args, i.was.dependsOn
	i.KubeProxy, i.Firewall, i.HealthCheckNodePorts = i.record.KubeProxy, i.record.FirewallPorts != "", i.record.HealthCheckNodePorts
	return i.install(ctx)
}

func (i *installation) install(ctx context.Context) (err error) {
	if i.Binary == "" {
		if i.Binary, err = os.Executable(); err != nil {
			return err
		}
	}
	program := filepath.Join(i.Directory, Name+".exe")
	if err := i.checkPlace(program); err != nil {
		return err
	}

	// What is checked, run and installed is a copy that only administrators can change. It is removed unless it is installed.
	made := missing(i.Directory)
	var next string
	defer func() {
		if next != "" {
			err = joined(err, discard(next))
		}
		for _, dir := range made {
			_ = os.Remove(dir) // fails if the program is in it
		}
	}()
	fmt.Fprintf(i.Out, "copy %s into %s and check the copy\n", i.Binary, i.Directory)
	if err := os.MkdirAll(i.Directory, 0o755); err != nil {
		return err
	}
	if err := i.checkPlace(program); err != nil { // again, because it may just have been made
		return err
	}
	next, sum, err := stage(i.Binary, i.Directory)
	if err != nil {
		return err
	}
	if i.SHA256 != "" && !strings.EqualFold(i.SHA256, sum) {
		return fmt.Errorf("%s has the SHA-256 checksum %s, not %s", i.Binary, sum, strings.ToLower(i.SHA256))
	}
	p, err := checkBinary(ctx, next, i.Binary, i.Args)
	if err != nil {
		return err
	}

	args := slices.Concat(prefixArgs, i.Args)
	want := settings{command: commandLine(program, args), start: mgr.StartAutomatic, dependsOn: i.DependsOn}
	record := Record{KubeProxy: i.record.KubeProxy, KubeProxyStart: i.record.KubeProxyStart}
	kubeProxy, err := i.replaced(&record)
	if err != nil {
		return err
	}
	if kubeProxy != nil {
		defer kubeProxy.Close()
	}
	if i.Firewall {
		record.HealthCheckNodePorts = i.HealthCheckNodePorts
		record.FirewallPorts = firewallPorts(p, i.HealthCheckNodePorts)
	}

	present, err := checksum(program)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	sameProgram := present == sum
	sameService := i.s != nil && i.was.command == want.command && i.was.start == want.start && slices.Equal(i.was.dependsOn, want.dependsOn)
	var steps []step
	restart := i.ran && !(sameProgram && sameService)
	// The undo of later steps disables the service, so that the SCM does not restart a failed program before the old one is back.
	enable := func() error { return i.s.setStart(i.was.start) }
	switch {
	case restart:
		steps = append(steps, step{"stop the service " + Name, i.s.stop, func() error { return joined(enable(), i.s.begin()) }})
	case i.s != nil && !i.ran:
		steps = append(steps, step{"check that the service " + Name + " is stopped", i.s.stop, enable})
	}
	if !sameProgram {
		steps = append(steps, swap(program, next, present != ""))
	}
	if !sameService {
		steps = append(steps, i.register(program, args, want))
	}
	steps = append(steps, i.firewall(program, record), step{"record what is changed besides the service", func() error { return writeRecord(record) }, func() error {
		if i.s == nil {
			return nil // deleted with its record
		}
		return writeRecord(i.record)
	}})
	if kubeProxy != nil {
		more, err := i.takeOver(kubeProxy, record)
		if err != nil {
			return err
		}
		steps = append(steps, more...)
	}
	steps = append(steps, step{"start the service " + Name + " and wait until it serves", func() error { return i.s.serve(ctx, p.Livez, i.Timeout) }, func() error {
		if i.ran && !restart {
			return nil // it runs as it did before
		}
		return joined(i.s.setStart(mgr.StartDisabled), i.s.stop())
	}})
	fmt.Fprintf(i.Out, "%s is nkp %s; it accepts the flags\n", i.Binary, p.Version)
	return perform(i.Out, i.DryRun, steps)
}

// replaced returns the service of kube-proxy that is to be replaced, nil for none, and enters it in the record. A kube-proxy that runs and
// is not to be replaced is an error.
func (i *installation) replaced(r *Record) (*existing, error) {
	if i.KubeProxy == "" {
		for _, name := range KubeProxies {
			s, err := find(i.m, name)
			if err != nil {
				return nil, err
			}
			if s == nil {
				continue
			}
			runs, err := s.running()
			s.Close()
			if err != nil {
				return nil, err
			}
			if runs {
				return nil, fmt.Errorf("the service %q runs, and two Service proxies must not share a node: stop it, or pass --replace-kube-proxy=%s", name, name)
			}
		}
		return nil, nil
	}
	s, err := find(i.m, i.KubeProxy)
	if err != nil || s == nil && r.KubeProxy == i.KubeProxy { // it was there when nkp was installed, and is gone
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("there is no service %q to replace", i.KubeProxy)
	}
	c, err := s.settings()
	if err != nil {
		s.Close()
		return nil, err
	}
	if r.KubeProxy != i.KubeProxy {
		r.KubeProxy, r.KubeProxyStart = i.KubeProxy, c.start
	}
	return s, nil
}

// takeOver stops kube-proxy and keeps it from starting with the system.
func (i *installation) takeOver(s *existing, r Record) (steps []step, err error) {
	c, err := s.settings()
	if err != nil {
		return nil, err
	}
	ran, err := s.running()
	if err != nil {
		return nil, err
	}
	if c.start != mgr.StartManual && c.start != mgr.StartDisabled {
		steps = append(steps, step{"set the service " + r.KubeProxy + " to start by hand only",
			func() error { return s.setStart(mgr.StartManual) }, func() error { return s.setStart(c.start) }})
	}
	if ran {
		steps = append(steps, step{"stop the service " + r.KubeProxy, s.stop, s.begin})
	}
	return steps, nil
}

// checkPlace returns an error if others than administrators could change or replace the program, which runs as SYSTEM.
func (i *installation) checkPlace(program string) error {
	err := access.CheckAbove(i.Directory)
	for _, path := range []string{i.Directory, program} {
		if err == nil {
			err = ignoreMissing(access.CheckPath(path))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: take that right away (icacls), or install with another --directory", err)
	}
	return nil
}

// missing returns the directory and those above it that do not exist, the lowest first.
func missing(dir string) (dirs []string) {
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			break
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// swap puts the copied program in the place of the old one, which stays beside it. A program can be renamed while it runs.
func swap(program, next string, replaces bool) step {
	renamed := false // the old one
	return step{"replace " + program + ", and keep the old one as " + filepath.Base(program+oldSuffix), func() error {
		if replaces {
			if err := discard(program + oldSuffix); err != nil {
				return err
			}
			if err := os.Rename(program, program+oldSuffix); err != nil {
				return err
			}
			renamed = true
		}
		return os.Rename(next, program)
	}, func() error {
		switch {
		case renamed:
			return joined(discard(program), os.Rename(program+oldSuffix, program)) // the process of the new one may still be ending
		case replaces:
			return nil // the old one is still in place
		}
		return ignoreMissing(os.Remove(program))
	}}
}

// discard deletes a file. A program that runs, such as the caller's own, is renamed, and deleted when the system starts again: under its
// own name a program installed before then would be deleted.
func discard(file string) error {
	aside := fmt.Sprintf("%s.%d.deleted", file, time.Now().UnixNano())
	if err := os.Rename(file, aside); err != nil {
		return ignoreMissing(err)
	}
	if os.Remove(aside) == nil {
		return nil
	}
	name, err := windows.UTF16PtrFromString(aside)
	if err != nil {
		return err
	}
	return windows.MoveFileEx(name, nil, windows.MOVEFILE_DELAY_UNTIL_REBOOT)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// register creates the service, or changes it.
func (i *installation) register(program string, args []string, want settings) step {
	if s := i.s; s != nil {
		return step{"change the service " + Name + " to " + want.command, func() error { return s.change(want) }, func() error {
			was := i.was
			was.start = mgr.StartDisabled // until an earlier step's undo restores it
			return s.change(was)
		}}
	}
	return step{"create the service " + Name + ": " + want.command, func() (err error) {
		i.s, err = create(i.m, program, args, want)
		return err
	}, func() error {
		if i.s == nil {
			return nil
		}
		err := i.s.remove()
		i.s = nil
		return err
	}}
}

// firewall writes the rule of the record, or removes that of the last one.
func (i *installation) firewall(program string, r Record) step {
	back := func() error {
		was, _, err := decompose(i.was.command)
		if i.record.FirewallPorts == "" || err != nil {
			return setRule(program, "")
		}
		return setRule(was, i.record.FirewallPorts)
	}
	switch {
	case r.FirewallPorts != "":
		return step{fmt.Sprintf("accept TCP ports %s for %s in the firewall (rule %q)", r.FirewallPorts, program, ruleName),
			func() error { return setRule(program, r.FirewallPorts) }, back}
	case i.record.FirewallPorts != "":
		return step{fmt.Sprintf("remove the firewall rule %q", ruleName), func() error { return setRule(program, "") }, back}
	}
	return step{"leave the firewall as it is", func() error { return nil }, nil}
}

// decompose returns the program and the flags of run of the service's command line.
func decompose(command string) (program string, flags []string, err error) {
	words, err := windows.DecomposeCommandLine(command)
	if err != nil {
		return "", nil, err
	}
	if len(words) < 1+len(prefixArgs) || !slices.Equal(words[1:1+len(prefixArgs)], prefixArgs) {
		return "", nil, fmt.Errorf("the service %q was not installed by nkp: it runs %s", Name, command)
	}
	return words[0], words[1+len(prefixArgs):], nil
}

// Uninstall stops the service, restores kube-proxy's start type, and removes the firewall rule, the service and its program. With cleanup
// it also removes what the program made in HNS. If nothing is installed, it succeeds.
func Uninstall(ctx context.Context, c Config, cleanup bool) error {
	i, err := open(c)
	if err != nil {
		return err
	}
	defer i.close()
	if i.s == nil {
		_, err := fmt.Fprintf(i.Out, "the service %q is not installed\n", Name)
		return err
	}
	program, flags, err := decompose(i.was.command)
	if err != nil {
		return err
	}
	var steps []step
	if i.ran {
		steps = append(steps, step{"stop the service " + Name, i.s.stop, i.s.begin})
	}
	if cleanup {
		steps = append(steps, step{"remove what nkp made in HNS", func() error {
			ctx, cancel := context.WithTimeout(ctx, cleanupTime)
			defer cancel()
			c := exec.CommandContext(ctx, program, slices.Concat([]string{"run"}, flags, []string{"--cleanup"})...)
			c.WaitDelay = waitDelay
			out, err := c.CombinedOutput()
			fmt.Fprint(i.Out, string(out))
			return err
		}, nil})
	}
	if name := i.record.KubeProxy; name != "" {
		s, err := find(i.m, name)
		if err != nil {
			return err
		}
		if s != nil {
			defer s.Close()
			steps = append(steps, step{fmt.Sprintf("set the service %s to start type %s, as it was (it is not started: sc.exe start %s)", name, startType(i.record.KubeProxyStart), name),
				func() error { return s.setStart(i.record.KubeProxyStart) }, func() error { return s.setStart(mgr.StartManual) }})
		}
	}
	if i.record.FirewallPorts != "" {
		steps = append(steps, i.firewall(program, Record{}))
	}
	steps = append(steps, step{"delete the service " + Name, i.s.remove, nil})
	if err := perform(i.Out, i.DryRun, steps); err != nil || i.DryRun {
		return err
	}
	i.s = nil
	return removeProgram(program)
}

// removeProgram deletes the program with what install left beside it, and their directory if it is empty then.
func removeProgram(program string) error {
	files := []string{program, program + oldSuffix}
	left, _ := fs.Glob(os.DirFS(filepath.Dir(program)), nextFiles) // of installations that were killed
	for _, name := range left {
		files = append(files, filepath.Join(filepath.Dir(program), name))
	}
	for _, file := range files {
		if err := discard(file); err != nil {
			return fmt.Errorf("the service is deleted, its program is not: %w", err)
		}
	}
	_ = os.Remove(filepath.Dir(program)) // it may hold other files
	return nil
}

// Query returns the state of the service.
func Query() (st State, err error) {
	i, err := open(Config{})
	if err != nil {
		return st, err
	}
	defer i.close()
	st = State{State: "not installed", Record: i.record}
	if i.s == nil {
		return st, nil
	}
	q, err := i.s.Service.Query()
	if err != nil {
		return st, err
	}
	st.State, st.PID, st.StartType, st.DependsOn = states[q.State], q.ProcessId, startType(i.was.start), i.was.dependsOn
	st.Program, st.Args, err = decompose(i.was.command)
	return st, err
}

// states are the SCM's names of service states, as sc.exe prints them.
var states = map[svc.State]string{svc.Stopped: "stopped", svc.StartPending: "start pending", svc.StopPending: "stop pending", svc.Running: "running",
	svc.ContinuePending: "continue pending", svc.PausePending: "pause pending", svc.Paused: "paused"}

func startType(t uint32) string {
	switch t {
	case mgr.StartAutomatic:
		return "automatic"
	case mgr.StartManual:
		return "manual"
	case mgr.StartDisabled:
		return "disabled"
	}
	return fmt.Sprintf("type %d", t)
}
