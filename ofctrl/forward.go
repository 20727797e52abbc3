package ofctrl

// Forward reports that another controller changed a group or a meter (OpenFlow 1.5.1 §7.4.6). The switch
// sends it after the fact, so the receiver should read back.
type Forward struct {
	Group bool   // a group, else a meter
	ID    uint32 // of the group or meter; the reserved numbers for "all" too
	// Command is that of the group-mod or meter-mod message.
	Command uint16
	// Lost means that reports were dropped because OnForward was slow; the other fields are zero.
	Lost bool
}

func decodeForward(f frame) (Forward, bool) {
	b := f.body()
	if len(b) < headerLen+8 {
		return Forward{}, false
	}
	req := b[headerLen:]
	switch msgType(b[1]) {
	case typeGroupMod:
		return Forward{Group: true, Command: u16(req), ID: u32(req[4:])}, true
	case typeMeterMod:
		return Forward{Command: u16(req), ID: u32(req[4:])}, true
	}
	return Forward{}, false
}
