package service

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// recovery is what the SCM does when the service fails: it restarts it, soon at first, and resets the failure count after a day.
var recovery = []mgr.RecoveryAction{
	{Type: mgr.ServiceRestart, Delay: time.Second},
	{Type: mgr.ServiceRestart, Delay: 10 * time.Second},
	{Type: mgr.ServiceRestart, Delay: time.Minute},
}

const recoveryReset = 24 * 60 * 60 // seconds

// stopWait is how long Uninstall waits for the service to stop.
const stopWait = time.Minute

// Install registers a service that starts with the system and is restarted when it fails, and its event log source. One that
// is there already is an error.
func Install(c Config) (err error) {
	if c.Executable == "" {
		if c.Executable, err = os.Executable(); err != nil {
			return err
		}
	}
	name := orName(c.Name)
	if c.DisplayName == "" {
		c.DisplayName = name
	}
	if c.DependsOn == nil {
		c.DependsOn = []string{"hns"}
	}
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("cannot reach the Service Control Manager (run as Administrator): %w", err)
	}
	defer m.Disconnect()
	s, err := m.CreateService(name, c.Executable, mgr.Config{
		StartType:    mgr.StartAutomatic,
		DisplayName:  c.DisplayName,
		Description:  c.Description,
		Dependencies: c.DependsOn,
	}, c.Args...)
	if err != nil {
		return fmt.Errorf("cannot create the service %q: %w", name, err)
	}
	defer s.Close()
	defer func() {
		if err != nil { // leave no half of a service behind
			err = errors.Join(err, s.Delete())
		}
	}()
	if err := s.SetRecoveryActions(recovery, recoveryReset); err != nil {
		return fmt.Errorf("cannot set the recovery actions of service %q: %w", name, err)
	}
	// Without the flag only crashes count as failures. An SCM that does not support it (Wine 8) works without.
	if err := s.SetRecoveryActionsOnNonCrashFailures(true); err != nil && !errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		return fmt.Errorf("cannot set the recovery flag of service %q: %w", name, err)
	}
	if err := eventlog.InstallAsEventCreate(name, eventlog.Error|eventlog.Warning|eventlog.Info); err != nil && !sourceExists(name) {
		return fmt.Errorf("cannot register the event log source %q: %w", name, err)
	}
	return nil
}

// sourceExists reports whether the event log has a source of that name; the library reports that in an error text only.
func sourceExists(name string) bool {
	l, err := eventlog.Open(name)
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Uninstall stops and removes a service and its event log source.
func Uninstall(name string) error {
	name = orName(name)
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("cannot reach the Service Control Manager (run as Administrator): %w", err)
	}
	defer m.Disconnect()
	s, err := m.OpenService(name)
	if err != nil {
		return fmt.Errorf("there is no service %q: %w", name, err)
	}
	defer s.Close()
	if err := stop(s); err != nil {
		return fmt.Errorf("cannot stop the service %q: %w", name, err)
	}
	if err := s.Delete(); err != nil {
		return fmt.Errorf("cannot delete the service %q: %w", name, err)
	}
	_ = eventlog.Remove(name) // it may never have been registered
	return nil
}

// stop stops a service and waits until it has.
func stop(s *mgr.Service) error {
	st, err := s.Control(svc.Stop)
	if errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) {
		return nil
	}
	if err != nil {
		return err
	}
	for end := time.Now().Add(stopWait); st.State != svc.Stopped; {
		if time.Now().After(end) {
			return fmt.Errorf("it has not stopped within %v", stopWait)
		}
		time.Sleep(300 * time.Millisecond)
		if st, err = s.Query(); err != nil {
			return err
		}
	}
	return nil
}
