//go:build !windows

package service

import (
	"context"
	"errors"
	"log/slog"
)

// errElsewhere is the error of everything here on other systems.
var errElsewhere = errors.New("no Windows services here, they exist on Windows only; on Linux use systemd or the DaemonSet")

// Run fails: there is no SCM here.
func Run(string, func(context.Context) error) error { return errElsewhere }

// IsService is false: there is no SCM here.
func IsService() bool { return false }

// Install fails: there is no SCM here.
func Install(Config) error { return errElsewhere }

// Uninstall fails: there is no SCM here.
func Uninstall(string) error { return errElsewhere }

// EventLog fails: there is no event log here.
func EventLog(string, slog.Leveler) (slog.Handler, error) { return nil, errElsewhere }
