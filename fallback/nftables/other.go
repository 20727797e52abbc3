//go:build !linux

package nftables

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

var errNotLinux = errors.New("nftables is supported on Linux only")

func (kernel) Open(context.Context, *fallback.Plane) (map[k8s.Family]func(context.Context), error) {
	return nil, errNotLinux
}

func (kernel) Count(
	context.Context, *k8s.Model, fallback.Options, string,
	map[k8s.PortName]k8s.Counters, map[dataplane.DropKey]uint64,
) error {
	return errNotLinux
}

func (kernel) CountNode(context.Context, fallback.Options, string) (n fallback.NodeCounters, err error) {
	return n, errNotLinux
}

func (kernel) List(context.Context, *k8s.Model, fallback.Options, string, *dataplane.Listing) error {
	return errNotLinux
}

// Diff returns the difference between installed and desired tables. It works on Linux only.
func Diff(*k8s.Model, Options) (string, error) { return "", errNotLinux }

// DiffService compares nkp's table for one Service port. It works on Linux only.
func DiffService(*k8s.Model, Options, k8s.Family, k8s.PortName) ([]string, error) {
	return nil, errNotLinux
}

// Follow follows a packet through nftables. It works on Linux only.
func Follow(context.Context, k8s.Family, rules.Packet) ([]rules.Path, []string, error) {
	return nil, nil, errNotLinux
}

// OfDevice returns chains that see a device's packets. It works on Linux only.
func OfDevice(string) ([]string, error) { return nil, errNotLinux }

// Lacking returns that this system has no nftables.
func Lacking(Options) error { return errNotLinux }

// HasKubeProxyTables reports that there are none: there is no nftables.
func HasKubeProxyTables() (bool, error) { return false, nil }

// RemoveKubeProxyTables removes kube-proxy's tables. It works on Linux only.
func RemoveKubeProxyTables() (int, error) { return 0, errNotLinux }

// Cleanup removes nkp's tables. It works on Linux only.
func Cleanup(func() (bool, error)) (int, error) { return 0, errNotLinux }

// TakeLocalnet reports that nftables protects nothing here.
func TakeLocalnet() (bool, error) { return false, nil }
