package main

import (
	"encoding/binary"
	"io/fs"
)

// hives are the registry files that Windows checks when it unpacks a base layer; they have to be valid ones, and may be empty.
var hives = []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"}

// windowsBase returns the base layer of a HostProcess container, which runs on the node's own Windows: the empty hives alone.
func windowsBase() files {
	base := files{}
	for _, name := range hives {
		base["Files/Windows/System32/config/"+name] = file{data: emptyHive(), mode: 0o644}
	}
	return base
}

// windowsFiles returns a layer of Windows': its files are below Files, and its changes of the registry, of which there are none,
// below Hives.
func windowsFiles(f files) files {
	layer := files{"Hives": {mode: fs.ModeDir | 0o755}}
	for name, content := range f {
		layer["Files/"+name] = content
	}
	return layer
}

// Sizes and offsets of a registry file's parts, in bytes. Offsets in the file count from the end of the base block.
const (
	baseBlock = 4096
	bin       = 4096
	binHeader = 32
	keyCell   = binHeader
	keySize   = 88 // the key node's 76 bytes and a name of 4, with the cell's size and padding
	secCell   = keyCell + keySize
	none      = 0xffffffff
)

// emptyHive returns a registry file of version 1.3 with a root key and nothing in it. Its time is zero, so that it is always the same.
func emptyHive() []byte {
	h := make([]byte, baseBlock+bin)
	le := binary.LittleEndian
	put := func(at int, values ...uint32) {
		for i, v := range values {
			le.PutUint32(h[at+4*i:], v)
		}
	}
	// The base block: sequence numbers that are equal (nothing to recover), version, type, format, root key, size, clustering.
	copy(h, "regf")
	put(4, 1, 1)
	put(20, 1, 3, 0, 1, keyCell, bin, 1)
	sum := uint32(0)
	for at := 0; at < 508; at += 4 {
		sum ^= le.Uint32(h[at:])
	}
	put(508, sum)

	body := baseBlock
	copy(h[body:], "hbin")
	put(body+4, 0, bin)

	// The root key: no subkeys, no values, no class.
	key := body + keyCell
	put(key, cellInUse(keySize))
	copy(h[key+4:], "nk")
	le.PutUint16(h[key+6:], 0x2c) // root of a hive, not to be deleted, name in ASCII
	put(key+20, none)             // parent
	put(key+32, none, none, 0, none, secCell, none)
	le.PutUint16(h[key+76:], 4)
	copy(h[key+80:], "ROOT")

	// Its security descriptor, in a list of one.
	security := descriptor()
	size := (4 + 20 + len(security) + 7) &^ 7
	sec := body + secCell
	put(sec, cellInUse(size))
	copy(h[sec+4:], "sk")
	put(sec+8, secCell, secCell, 1, uint32(len(security)))
	copy(h[sec+24:], security)

	free := secCell + size
	put(body+free, uint32(bin-free))
	return h
}

// descriptor returns a self-relative security descriptor: administrators own the key, they and SYSTEM have full control.
func descriptor() []byte {
	le := binary.LittleEndian
	administrators := []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0} // S-1-5-32-544
	system := []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0}                        // S-1-5-18
	var acl []byte
	for _, sid := range [][]byte{administrators, system} {
		acl = append(acl, 0, 2) // allowed; inherited by subkeys
		acl = le.AppendUint16(acl, uint16(8+len(sid)))
		acl = le.AppendUint32(acl, 0xf003f) // KEY_ALL_ACCESS
		acl = append(acl, sid...)
	}
	const header = 20
	d := []byte{1, 0}
	d = le.AppendUint16(d, 0x8004) // self-relative, with a discretionary list
	d = le.AppendUint32(d, header)
	d = le.AppendUint32(d, uint32(header+len(administrators)))
	d = le.AppendUint32(d, 0)
	d = le.AppendUint32(d, uint32(header+len(administrators)+len(system)))
	d = append(append(d, administrators...), system...)
	d = append(d, 2, 0)
	d = le.AppendUint16(d, uint16(8+len(acl)))
	d = le.AppendUint16(d, 2)
	d = append(d, 0, 0)
	return append(d, acl...)
}

// cellInUse returns how a registry file marks a cell of this size that is not free: by the negative of it.
func cellInUse(size int) uint32 { return uint32(-int32(size)) }
