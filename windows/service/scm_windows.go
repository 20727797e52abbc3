package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// recovery is what the SCM does when the service fails: it restarts it, soon at first, and resets the failure
// count after a day.
var recovery = []mgr.RecoveryAction{
	{Type: mgr.ServiceRestart, Delay: time.Second},
	{Type: mgr.ServiceRestart, Delay: 10 * time.Second},
	{Type: mgr.ServiceRestart, Delay: time.Minute},
}

const recoveryReset = 24 * 60 * 60 // seconds

const (
	stopWait = time.Minute            // how long a service may take to stop
	look     = 300 * time.Millisecond // how often a service's state is read
	steady   = 5 * time.Second        // how long a service without /livez must run to count as serving
)

// settings are the settings of a service that an installation changes.
type settings struct {
	command   string // program and arguments
	start     uint32
	dependsOn []string
}

// existing is a service of the SCM; nil stands for one that does not exist.
type existing struct{ *mgr.Service }

func connect() (*mgr.Mgr, error) {
	m, err := mgr.Connect()
	if err != nil {
		return nil, fmt.Errorf("cannot reach the Service Control Manager (run as Administrator): %w", err)
	}
	return m, nil
}

// find returns a service, nil if it does not exist.
func find(m *mgr.Mgr, name string) (*existing, error) {
	s, err := m.OpenService(name)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot open the service %q: %w", name, err)
	}
	return &existing{s}, nil
}

// settings reads the settings. mgr's Config does not serve, because it needs information levels that Wine 8
// does not have.
func (s *existing) settings() (settings, error) {
	buf := make([]byte, 8<<10) // the largest answer (QueryServiceConfigW)
	q := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&buf[0]))
	var n uint32
	if err := windows.QueryServiceConfig(s.Handle, q, uint32(len(buf)), &n); err != nil {
		return settings{}, fmt.Errorf("cannot read the settings of service %q: %w", s.Name, err)
	}
	c := settings{command: windows.UTF16PtrToString(q.BinaryPathName), start: q.StartType}
	for p := q.Dependencies; p != nil && *p != 0; {
		name := windows.UTF16PtrToString(p)
		c.dependsOn = append(c.dependsOn, name)
		p = (*uint16)(unsafe.Add(unsafe.Pointer(p), 2*(len(utf16.Encode([]rune(name)))+1)))
	}
	return c, nil
}

// change writes the settings.
func (s *existing) change(c settings) error {
	command, err := windows.UTF16PtrFromString(c.command)
	if err != nil {
		return err
	}
	depends := append(utf16.Encode([]rune(strings.Join(append(c.dependsOn, ""), "\x00"))), 0)
	if len(c.dependsOn) == 0 {
		depends = []uint16{0, 0}
	}
	return windows.ChangeServiceConfig(s.Handle, windows.SERVICE_NO_CHANGE, c.start, windows.SERVICE_NO_CHANGE,
		command, nil, nil, &depends[0], nil, nil, nil)
}

// running reports whether the service is not stopped.
func (s *existing) running() (bool, error) {
	if s == nil {
		return false, nil
	}
	st, err := s.Query()
	return st.State != svc.Stopped, err
}

// begin starts the service, if it does not run.
func (s *existing) begin() error {
	if err := s.Start(); err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
		return err
	}
	return nil
}

// stop stops the service and waits until it has.
func (s *existing) stop() error {
	asked := false
	for end := time.Now().Add(stopWait); ; time.Sleep(look) {
		if !asked {
			_, err := s.Control(svc.Stop)
			switch {
			case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
				return nil
			case errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL): // it starts or stops
			case err != nil:
				return err
			}
			asked = err == nil
		}
		st, err := s.Query()
		if err != nil || st.State == svc.Stopped {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("it has not stopped within %v", stopWait)
		}
	}
}

// serve starts the service and waits until it serves: until its /livez answers 200, or where it has none,
// until it has run for a while.
func (s *existing) serve(ctx context.Context, livez string, timeout time.Duration) error {
	if err := s.begin(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	var pid uint32
	var since time.Time
	last := errors.New("it has not started")
	for {
		st, err := s.Query()
		switch {
		case err != nil:
			return err
		case st.State == svc.Stopped || pid != 0 && st.ProcessId != pid:
			return fmt.Errorf("it ends again (exit code %d, %d); the event log, source %s, has the reason",
				st.Win32ExitCode, st.ServiceSpecificExitCode, Name)
		case st.State == svc.Running && pid == 0:
			pid, since = st.ProcessId, time.Now()
		case st.State == svc.Running && livez == "" && time.Since(since) >= steady:
			return nil
		case st.State == svc.Running && livez != "":
			if last = alive(livez); last == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not serve within %v (--timeout): %w", timeout, last)
		case <-time.After(look):
		}
	}
}

// direct asks without a proxy, and keeps no connection.
var direct = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// alive returns nil if a URL answers 200.
func alive(url string) error {
	res, err := direct.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, res.Status)
	}
	return nil
}

// create registers a service that is restarted when it fails, and its event log source.
func create(m *mgr.Mgr, program string, args []string, c settings) (_ *existing, err error) {
	created, err := m.CreateService(Name, program, mgr.Config{
		StartType: c.start, Dependencies: c.dependsOn,
		DisplayName: "nkp (Kubernetes Service proxy)",
		Description: "Serves Kubernetes Services by load balancers of the Host Networking Service.",
	}, args...)
	if err != nil {
		return nil, err
	}

	s := &existing{created}
	defer func() {
		if err != nil { // leave no half of a service behind
			err = errors.Join(err, s.Delete(), s.Close())
		}
	}()

	if err := s.SetRecoveryActions(recovery, recoveryReset); err != nil {
		return nil, fmt.Errorf("recovery actions: %w", err)
	}
	// Without the flag only crashes count as failures. An SCM that does not support it (Wine 8) works
	// without.
	err = s.SetRecoveryActionsOnNonCrashFailures(true)
	if err != nil && !errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		return nil, fmt.Errorf("recovery flag: %w", err)
	}
	_ = eventlog.Remove(Name) // left by a service that was deleted otherwise
	if err := eventlog.InstallAsEventCreate(Name, eventlog.Error|eventlog.Warning|eventlog.Info); err != nil {
		return nil, fmt.Errorf("event log source: %w", err)
	}
	return s, nil
}

// remove deletes the service and its event log source.
func (s *existing) remove() error {
	if err := s.Delete(); err != nil && !errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE) {
		return err
	}
	_ = eventlog.Remove(Name) // it may never have been registered
	return s.Close()          // the SCM deletes it when no handle is open
}

// commandLine returns the command line of a service.
func commandLine(program string, args []string) string {
	line := syscall.EscapeArg(program)
	for _, a := range args {
		line += " " + syscall.EscapeArg(a)
	}
	return line
}
