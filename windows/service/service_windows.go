package service

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/windows/svc"
)

// accepted are the controls that the SCM may send while nkp runs.
const accepted = svc.AcceptStop | svc.AcceptShutdown

// Hints for the SCM of how long starting and stopping may take, in ms. HNS calls cannot be cancelled.
const (
	startHint = 10_000
	stopHint  = 30_000
)

// exitFailed is the service-specific exit code of a run that failed; with it the SCM's recovery actions
// apply.
const exitFailed = 1

// Run runs a program as the service Name until the SCM stops it or it ends by itself. The context ends when
// the service is to stop. It must be called on the process's main goroutine, and fails if the SCM did not
// start the process.
func Run(program func(context.Context) error) error {
	h := &handler{program: program}
	err := svc.Run(Name, h)
	if err != nil && !h.began {
		return fmt.Errorf("--windows-service: this process was not started by the Service Control Manager "+
			"(sc.exe start %s): %w", Name, err)
	}
	return errors.Join(err, h.err)
}

// IsService reports whether the SCM started this process.
func IsService() bool {
	is, err := svc.IsWindowsService()
	return err == nil && is
}

// handler answers the SCM.
type handler struct {
	program func(context.Context) error
	began   bool  // the SCM has begun it
	err     error // of the program
}

// Execute implements svc.Handler.
func (h *handler) Execute(
	_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status,
) (specific bool, code uint32) {
	h.began = true
	status <- svc.Status{State: svc.StartPending, WaitHint: startHint}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.program(ctx) }() // ends with ctx
	status <- svc.Status{State: svc.Running, Accepts: accepted}

	for {
		select {
		case h.err = <-ended:
			status <- svc.Status{State: svc.StopPending}
			if h.err != nil {
				return true, exitFailed
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: stopHint}
				cancel()
			}
		}
	}
}
