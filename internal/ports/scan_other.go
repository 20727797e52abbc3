//go:build !linux

package ports

import "errors"

// Scan is for Linux only.
func Scan() ([]Listener, error) { return nil, errors.ErrUnsupported }

func owners(map[uint32]bool) map[uint32]Process { return nil }
