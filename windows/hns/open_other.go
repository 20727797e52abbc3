//go:build !windows

package hns

import "errors"

// Open returns the HNS of this machine; only Windows has one.
func Open() (Host, error) {
	return nil, errors.New("the Host Networking Service (HNS) exists on Windows only; use another --mode here")
}
