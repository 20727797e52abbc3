//go:build !linux

package fallback

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

func (p *Plane) own(context.Context) (func(), error) { return func() {}, nil }

func isLocal(a netip.Addr) bool { return a.IsLoopback() }

func netnsFile(string) (string, error) { return "", errors.ErrUnsupported }

func netnsCookie() string { return "" }

func (p *Plane) sendCanary(k8s.Family) (r dataplane.CanaryResult) { return r }
