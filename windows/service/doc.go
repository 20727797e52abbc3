// Package service wraps the Windows Service Control Manager (SCM): running as a service, installing and removing one, and the
// event log as a slog.Handler. On other systems every function fails and says so.
//
// Start reading at Run.
package service

// Name is the name of nkp's service and of its source in the event log.
const Name = "nkp"

// Config is a service to install.
type Config struct {
	Name        string // "": Name
	DisplayName string // "": the name
	Description string
	Executable  string   // an absolute path; "": this program
	Args        []string // of the executable, such as run --windows-service --config C:\k\nkp.conf
	// DependsOn are services that must run first; none: hns.
	DependsOn []string
}
