//go:build !linux

package live

import (
	"errors"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// KernelConnections gives the connections that the kernel tracks. It works on Linux only.
func KernelConnections(k8s.Family) ([]dpctl.Connection, error) {
	return nil, errors.New("the kernel's connections can be read on Linux only")
}
