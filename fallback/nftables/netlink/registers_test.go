//go:build linux

package netlink

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The four registers of 16 bytes and the sixteen of 4 bytes are the same memory (linux/netfilter/nf_tables.h, enum nft_registers).
func TestRegisterOffsets(t *testing.T) {
	for i := range uint32(4) {
		if got, want := offset(unix.NFT_REG_1+i), int(16*i); got != want {
			t.Errorf("register %d of 16 bytes begins at %d, not at %d", i+1, got, want)
		}
	}
	for i := range uint32(16) {
		if got, want := offset(unix.NFT_REG32_00+i), int(4*i); got != want {
			t.Errorf("register %d of 4 bytes begins at %d, not at %d", i, got, want)
		}
	}
}
