package service

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// prefixArgs are the arguments of the service before the flags of run.
var prefixArgs = []string{"run", "--windows-service"}

// kubeProxies are the names under which kube-proxy is commonly installed as a service (Kubernetes' scripts,
// AKS).
var kubeProxies = []string{"kube-proxy", "kubeproxy"}

// cleanupTime bounds a program that removes what it made in HNS, which itself gives up after 10 minutes.
const cleanupTime = 11 * time.Minute

// installation is what Install, Upgrade and Uninstall work on.
type installation struct {
	Config
	m   *mgr.Mgr
	s   *existing // nil: not installed
	was settings  // of s before; zero: it was not installed
	ran bool      // s was running before
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

// Install copies a program, registers it as a service that starts with the system and is restarted when it
// fails, and starts it. If the service exists, Install changes it. Everything is checked first. If a step
// fails, or the service does not serve, the program and the service are made what they were.
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

// Upgrade replaces the program of the installed service and keeps everything else. If the new program does
// not serve, it restores the old one.
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
	return i.install(ctx)
}

func (i *installation) install(ctx context.Context) (err error) {
	if err := i.checkKubeProxy(); err != nil {
		return err
	}
	if i.Binary == "" {
		if i.Binary, err = os.Executable(); err != nil {
			return err
		}
	}

	// The directory is checked again once it is there, because another user may have made it in between.
	program := filepath.Join(i.Directory, Name+".exe")
	if err := checkPlace(program); err != nil {
		return err
	}
	fmt.Fprintf(i.Out, "copy %s into %s and check the copy\n", i.Binary, i.Directory)
	if err := os.MkdirAll(i.Directory, 0o755); err != nil {
		return err
	}
	defer os.Remove(i.Directory) // fails unless it is empty
	if err := checkPlace(program); err != nil {
		return err
	}

	// What is checked, run and installed is a copy that only administrators can change. It is removed unless
	// it is installed.
	next, sum, err := stage(i.Binary, i.Directory)
	if err != nil {
		return err
	}
	defer func() { err = joined(err, discard(next)) }()
	if i.SHA256 != "" && !strings.EqualFold(i.SHA256, sum) {
		return fmt.Errorf("%s has the SHA-256 checksum %s, not %s", i.Binary, sum, strings.ToLower(i.SHA256))
	}
	p, err := checkProgram(ctx, next, i.Binary, i.Args)
	if err != nil {
		return err
	}
	present, err := checksum(program)
	if err != nil {
		return err
	}

	x := &exchange{program: program, next: next, had: present != ""}
	steps := i.steps(x, present != sum)
	changes := len(steps) > 0
	steps = append(steps, step{"start the service " + Name + " and wait until it serves", func() error {
		return i.s.serve(ctx, p.Livez, i.Timeout)
	}})
	fmt.Fprintf(i.Out, "%s is nkp %s; it accepts the flags\n", i.Binary, p.Version)
	err = perform(i.Out, i.DryRun, steps)
	if err == nil || i.ran && !changes { // then it runs as it did before
		return err
	}
	fmt.Fprintf(i.Out, "undo: make the service %s and its program what they were\n", Name)
	return joined(err, i.rollback(x))
}

// checkKubeProxy returns an error if kube-proxy's service runs.
func (i *installation) checkKubeProxy() error {
	for _, name := range kubeProxies {
		s, err := find(i.m, name)
		if err != nil {
			return err
		}
		runs, err := s.running()
		if s != nil {
			s.Close()
		}
		if err != nil {
			return err
		}
		if runs {
			return fmt.Errorf("the service %q runs, and two Service proxies must not share a node: "+
				"sc.exe config %[1]s start= disabled, and sc.exe stop %[1]s", name)
		}
	}
	return nil
}

// steps returns the steps before the start: none if the program and the service are as wanted.
func (i *installation) steps(x *exchange, newProgram bool) (steps []step) {
	args := slices.Concat(prefixArgs, i.Args)
	want := settings{command: commandLine(x.program, args), start: mgr.StartAutomatic, dependsOn: i.DependsOn}
	newService := i.s == nil || i.was.command != want.command || i.was.start != want.start ||
		!slices.Equal(i.was.dependsOn, want.dependsOn)

	if i.s != nil && (newProgram || newService) {
		steps = append(steps, step{"stop the service " + Name, i.s.stop})
	}
	if newProgram {
		text := "replace " + x.program + ", and keep the old one as " + filepath.Base(x.program+oldSuffix)
		steps = append(steps, step{text, x.do})
	}
	switch {
	case i.s == nil:
		steps = append(steps, step{"create the service " + Name + ": " + want.command, func() (err error) {
			i.s, err = create(i.m, x.program, args, want)
			return err
		}})
	case newService:
		steps = append(steps, step{"change the service " + Name + " to " + want.command, func() error {
			return i.s.change(want)
		}})
	}
	return steps
}

// rollback makes the program and the service what they were, however far the steps have come. It disables the
// service meanwhile, so that the SCM does not restart a failed program before the old one is back.
func (i *installation) rollback(x *exchange) (err error) {
	created := i.was.command == ""
	if i.s != nil && !created {
		off := i.was
		off.start = mgr.StartDisabled
		err = i.s.change(off)
	}
	if i.s != nil {
		err = joined(err, i.s.stop())
	}
	if i.s != nil && created {
		err = joined(err, i.remove())
	}

	err = joined(err, x.undo())
	if i.s != nil {
		err = joined(err, i.s.change(i.was))
	}
	if i.ran {
		err = joined(err, i.s.begin())
	}
	return err
}

// remove deletes the service. The SCM does that once no handle is open.
func (i *installation) remove() error {
	err := i.s.remove()
	i.s = nil
	return err
}

// Uninstall stops the service, and removes it and its program. With cleanup it also removes what the program
// made in HNS. If nothing is installed, it succeeds.
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

	steps := []step{{"stop the service " + Name, i.s.stop}}
	if cleanup {
		steps = append(steps, step{"remove what nkp made in HNS", func() error {
			ctx, cancel := context.WithTimeout(ctx, cleanupTime)
			defer cancel()
			c := exec.CommandContext(ctx, program, slices.Concat([]string{"run"}, flags, []string{"--cleanup"})...)
			c.WaitDelay = waitDelay
			out, err := c.CombinedOutput()
			fmt.Fprint(i.Out, string(out))
			return err
		}})
	}
	steps = append(steps, step{"delete the service " + Name, i.remove},
		step{"delete its program " + program, func() error { return removeProgram(program) }})

	err = perform(i.Out, i.DryRun, steps)
	if err != nil && i.s != nil && i.ran {
		err = joined(err, i.s.begin())
	}
	return err
}

// step is one change to the system, described in the imperative.
type step struct {
	text string
	do   func() error
}

// perform prints and takes the steps in order, up to one that fails. With dryRun it prints them only.
func perform(out io.Writer, dryRun bool, steps []step) error {
	for _, s := range steps {
		fmt.Fprintln(out, s.text)
		if dryRun {
			continue
		}
		if err := s.do(); err != nil {
			return fmt.Errorf("cannot %s: %w", s.text, err)
		}
	}
	return nil
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

// Query returns the state of the service.
func Query() (st State, err error) {
	i, err := open(Config{})
	if err != nil {
		return st, err
	}
	defer i.close()
	if i.s == nil {
		return State{State: "not installed"}, nil
	}
	q, err := i.s.Service.Query()
	if err != nil {
		return st, err
	}
	st = State{
		State:     states[q.State],
		PID:       q.ProcessId,
		StartType: startType(i.was.start),
		DependsOn: i.was.dependsOn,
	}
	st.Program, st.Args, err = decompose(i.was.command)
	return st, err
}

// states are the SCM's names of service states, as sc.exe prints them.
var states = map[svc.State]string{
	svc.Stopped:         "stopped",
	svc.StartPending:    "start pending",
	svc.StopPending:     "stop pending",
	svc.Running:         "running",
	svc.ContinuePending: "continue pending",
	svc.PausePending:    "pause pending",
	svc.Paused:          "paused",
}

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
