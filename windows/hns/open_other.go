//go:build !windows

package hns

import "errors"

var errNotWindows = errors.New("the Host Networking Service (HNS) exists on Windows only")

// Open returns the HNS of this machine; only Windows has one.
func Open() (Host, error) { return nil, errNotWindows }

// OpenRaw returns the HNS of this machine; only Windows has one.
func OpenRaw() (Raw, error) { return nil, errNotWindows }
