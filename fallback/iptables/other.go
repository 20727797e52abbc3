//go:build !linux

package iptables

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

var errNotLinux = errors.New("iptables is supported on Linux only")

func (kernel) Open(context.Context, *fallback.Plane) (map[k8s.Family]func(context.Context), error) {
	return nil, errNotLinux
}

func listRules(context.Context, string, k8s.Family) (lister, error) { return nil, errNotLinux }

func (kernel) List(context.Context, *k8s.Model, fallback.Options, string, *dataplane.Listing) error {
	return errNotLinux
}

// Diff returns the difference between installed and desired rules. It works on Linux only.
func Diff(context.Context, *k8s.Model, Options) (string, error) { return "", errNotLinux }

// Cleanup removes everything that the plane installs. It works on Linux only.
func Cleanup(context.Context, CleanupOptions) (Removed, error) { return Removed{}, errNotLinux }

// Available returns an error: iptables is supported on Linux only.
func Available(string) error { return errNotLinux }

// Occupied reports whether another proxy's rules are present. Without iptables there are none.
func Occupied(context.Context) (bool, error) { return false, nil }

// ReadRules returns the rules that are installed now. It works on Linux only.
func ReadRules(context.Context, string, k8s.Family) (map[string]map[string][]string, error) {
	return nil, errNotLinux
}

// LegacyRules returns nothing: there is no iptables.
func LegacyRules(context.Context, k8s.Family, ...string) (string, map[string]map[string][]string, error) {
	return "", nil, nil
}

// LegacyDropsAll returns nothing: there is no iptables.
func LegacyDropsAll(context.Context, k8s.Family, string) (string, error) { return "", nil }

// Drops returns nothing: there is no iptables.
func Drops(context.Context, Options) (string, error) { return "", nil }

// TakeLocalnet reports that iptables protects nothing here.
func TakeLocalnet(context.Context, string) (bool, error) { return false, nil }
