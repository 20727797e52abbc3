// Package service wraps the Windows Service Control Manager (SCM): running as a service, installing,
// upgrading and removing one, and the event log as a slog.Handler. On other systems every function fails and
// says so.
//
// It changes no other service and no firewall rule: Install fails while kube-proxy's service runs.
//
// Start reading at Run, and at Install.
package service

import (
	"errors"
	"io"
	"time"
)

// Name is the name of nkp's service and of its source in the event log.
const Name = "nkp"

// ErrFlags is wrapped by errors about flags of run that the program to install does not accept.
var ErrFlags = errors.New("the service could not start")

// Config is what to install.
type Config struct {
	Binary    string // the program; "": this one
	SHA256    string // that the program must have, in hexadecimal; "": any
	Directory string // where the program is copied to; "": %ProgramFiles%\nkp
	Args      []string
	DependsOn []string      // services that must run first
	Timeout   time.Duration // for a started service to serve
	DryRun    bool          // print the steps only
	Out       io.Writer     // for the steps
}

// Program is what a program answers to "windows-service check" about itself and the flags it was given.
type Program struct {
	Version string `json:"version"`
	// Livez is the URL at which it will report its liveness on this node; "": nowhere.
	Livez string `json:"livez,omitempty"`
}

// State is the installed service.
type State struct {
	State     string   `json:"state"` // as the SCM calls it, or "not installed"
	PID       uint32   `json:"pid,omitempty"`
	StartType string   `json:"startType,omitempty"`
	Program   string   `json:"program,omitempty"`
	Args      []string `json:"args,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}
