//go:build linux

package xtables

import (
	"fmt"
	"os/exec"

	"github.com/coreos/go-iptables/iptables"
)

// Backend is the kernel interface that iptables uses.
type Backend string

// The back ends. Each has tables of its own: a rule in one is invisible in the other.
const (
	NFT    Backend = "nf_tables"
	Legacy Backend = "legacy"
)

// programs are the iptables programs of one back end and family.
type programs struct{ iptables, restore, save string }

// dirs are where programs are that a service's PATH may leave out.
var dirs = []string{"", "/usr/sbin/", "/sbin/", "/usr/local/sbin/"}

func lookPath(name string) (string, error) {
	for _, dir := range dirs {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: not installed", name)
}

// find gives the programs of a back end: iptables-nft and so on.
func find(b Backend, p iptables.Protocol) (programs, error) {
	name := "iptables"
	if p == iptables.ProtocolIPv6 {
		name = "ip6tables"
	}
	name += map[Backend]string{NFT: "-nft", Legacy: "-legacy"}[b]
	var found programs
	for path, name := range map[*string]string{&found.iptables: name, &found.restore: name + "-restore", &found.save: name + "-save"} {
		var err error
		if *path, err = lookPath(name); err != nil {
			return programs{}, err
		}
	}
	return found, nil
}
