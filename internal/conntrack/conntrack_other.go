//go:build !linux

package conntrack

import (
	"context"
	"errors"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// Each lists connections on Linux only.
func Each(context.Context, k8s.Family, uint16, func(*dpctl.Connection) error) error {
	return errors.ErrUnsupported
}

// Forget deletes connections on Linux only.
func Forget(context.Context, k8s.Family, uint16, func(*dpctl.Connection) bool) (int, error) {
	return 0, errors.ErrUnsupported
}

// ForgetOne deletes a connection on Linux only.
func ForgetOne(*dpctl.Connection) (bool, error) { return false, errors.ErrUnsupported }

// Usage returns the size of the kernel's table on Linux only.
func Usage() (dpctl.Fill, error) { return dpctl.Fill{}, errors.ErrUnsupported }

// Failures returns the failures of the kernel's table on Linux only.
func Failures() (map[string]uint64, error) { return nil, errors.ErrUnsupported }
