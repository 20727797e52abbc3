// Package service wraps the Windows Service Control Manager (SCM): running as a service, installing, upgrading and removing one,
// and the event log as a slog.Handler. On other systems every function fails and says so.
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

// KubeProxies are the names under which kube-proxy is commonly installed as a service (Kubernetes' scripts, AKS).
var KubeProxies = []string{"kube-proxy", "kubeproxy"}

// ErrFlags is wrapped by errors about flags of run that the program to install does not accept.
var ErrFlags = errors.New("the service could not start")

// Config is what to install.
type Config struct {
	Binary    string // the program; "": this one
	SHA256    string // that the program must have, in hexadecimal; "": any
	Directory string // where the program is copied to; "": %ProgramFiles%\nkp
	Args      []string
	// DependsOn are services that must run first.
	DependsOn []string
	// KubeProxy is the service that nkp replaces; "": none.
	KubeProxy string
	// Firewall has the rule for inbound connections written. HealthCheckNodePorts is a port range of the rule, such as 30000-32767.
	Firewall             bool
	HealthCheckNodePorts string
	Timeout              time.Duration // for a started service to serve
	DryRun               bool          // print the steps only
	Out                  io.Writer     // for the steps
}

// Program is what a program answers to "windows-service check" about itself and the flags it was given.
type Program struct {
	Version string `json:"version"`
	// Livez is the URL at which it will report its liveness on this node; "": nowhere.
	Livez string `json:"livez,omitempty"`
	// Ports are the TCP ports that it will listen on for other nodes.
	Ports []uint16 `json:"ports,omitempty"`
}

// State is an installed service.
type State struct {
	State     string   `json:"state"` // as the SCM calls it, or "not installed"
	PID       uint32   `json:"pid,omitempty"`
	StartType string   `json:"startType,omitempty"`
	Program   string   `json:"program,omitempty"`
	Args      []string `json:"args,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
	Record
}

// Record is what an installation changed outside of its service, for its reversal.
type Record struct {
	// KubeProxy is the service that was replaced, with its start type then (winsvc.h, dwStartType).
	KubeProxy      string `json:"kubeProxy,omitempty"`
	KubeProxyStart uint32 `json:"kubeProxyStart,omitempty"`
	// FirewallPorts are the ports of the firewall rule, as netsh takes them; "": there is no rule.
	FirewallPorts        string `json:"firewallPorts,omitempty"`
	HealthCheckNodePorts string `json:"healthCheckNodePorts,omitempty"`
}
