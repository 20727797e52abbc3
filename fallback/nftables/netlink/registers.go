//go:build linux

package netlink

import (
	"bytes"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// registers are the kernel's registers while it evaluates a rule, as far as their bytes are known.
type registers struct {
	b     [64]byte
	known uint64 // a bit for each byte
	// device is 1 more than the offset of the name or number of a device that is not known, but is none of
	// notDevices; 0: of none.
	device     int
	notDevices []string
}

// offset returns where a register begins: the first four have 16 bytes, and the same memory has numbers for
// each 4 bytes.
func offset(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return int(register-unix.NFT_REG32_00) * 4 % 64
	}
	return int(register-unix.NFT_REG_1) * 16 % 64
}

// bits returns a bit for each of n bytes from an offset.
func bits(at, n int) uint64 {
	if n >= 64 {
		return ^uint64(0) << at
	}
	return (1<<n - 1) << at
}

// load puts a value into a register. known has a bit for each of its bytes. The kernel fills up to 4 bytes
// with zeros.
func (g *registers) load(register uint32, value []byte, known uint64) {
	at := offset(register)
	n := min((len(value)+3)&^3, len(g.b)-at)
	clear(g.b[at : at+n])
	copy(g.b[at:], value)
	g.known = g.known&^bits(at, n) | (known|^bits(0, len(value)))<<at&bits(at, n)
	g.device = 0
}

// forget marks n bytes of a register as not known.
func (g *registers) forget(register uint32, n int) {
	at := offset(register)
	g.known &^= bits(at, n)
	g.device = 0
}

// read returns n bytes of a register, and whether all are known.
func (g *registers) read(register uint32, n int) ([]byte, bool) {
	at := offset(register)
	n = min(n, len(g.b)-at)
	return g.b[at : at+n], g.known&bits(at, n) == bits(at, n)
}

// truth is whether an expression matches, as far as that is known.
type truth uint8

const (
	no truth = iota
	yes
	maybe
	timeDependent // at one time or another
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func (t truth) not(invert bool) truth {
	if !invert || t == maybe {
		return t
	}
	return truthOf(t == no)
}

// equals reports whether a register has a value.
func (g *registers) equals(register uint32, value []byte) truth {
	at := offset(register)
	result := yes
	for i, b := range value {
		switch {
		case at+i >= len(g.b) || g.known&(1<<(at+i)) == 0:
			result = maybe
		case g.b[at+i] != b:
			return no
		}
	}
	return result
}

// order compares a register with a value as a number in network byte order; ok is false if it is not known.
func (g *registers) order(register uint32, value []byte) (order int, ok bool) {
	b, ok := g.read(register, len(value))
	return bytes.Compare(b, value), ok
}

// forgetDevice marks the name or number of a device as not known, except that it is none of some. Names in
// not may end in *.
func (g *registers) forgetDevice(register uint32, size int, not ...string) {
	g.forget(register, size)
	g.device, g.notDevices = offset(register)+1, not
}

// otherDevice reports whether a device's name or number in a comparison is one that the unknown device is
// known not to have.
func (g *registers) otherDevice(value []byte) bool {
	if bytes.Equal(value, host32(loopback)) {
		return slices.Contains(g.notDevices, "lo")
	}
	name := strings.TrimRight(string(value), "\x00")
	whole := len(name) < len(value)
	for _, n := range g.notDevices {
		begin, wild := strings.CutSuffix(n, "*")
		if wild && strings.HasPrefix(name, begin) || whole && name == n {
			return true
		}
	}
	return false
}
