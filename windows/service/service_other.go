//go:build !windows

package service

import (
	"context"
	"errors"
	"log/slog"
)

// errElsewhere is the error of everything here on other systems.
var errElsewhere = errors.New("no Windows services here, they exist on Windows only; " +
	"on Linux use systemd or the DaemonSet")

// Run fails: there is no SCM here.
func Run(func(context.Context) error) error { return errElsewhere }

// IsService is false: there is no SCM here.
func IsService() bool { return false }

// Install fails: there is no SCM here.
func Install(context.Context, Config) error { return errElsewhere }

// Upgrade fails: there is no SCM here.
func Upgrade(context.Context, Config) error { return errElsewhere }

// Uninstall fails: there is no SCM here.
func Uninstall(context.Context, Config, bool) error { return errElsewhere }

// Query fails: there is no SCM here.
func Query() (State, error) { return State{}, errElsewhere }

// EventLog fails: there is no event log here.
func EventLog(slog.Leveler) (slog.Handler, error) { return nil, errElsewhere }
