package flow

// Sizes of OpenFlow 1.5 encodings, in bytes. Package ofctrl's encoder is tested against them.
const (
	// MaxMessage is the longest OpenFlow message: the header's length field has 16 bits (OpenFlow 1.5.1
	// §7.1.1).
	MaxMessage = 65535

	bundleAddSize  = 16 // ofp_bundle_add_msg (§7.3.9)
	groupModSize   = 24 // ofp_group_mod (§7.3.4.3)
	groupDescSize  = 32 // ofp_multipart_reply and ofp_group_desc (§7.3.5)
	bucketSize     = 8  // ofp_bucket (§7.3.4.3)
	weightPropSize = 8  // ofp_group_bucket_prop_weight
	methodPropSize = 40 // ntr_group_prop_selection_method (OVS extension), without fields
)

// EncodedSize returns the size in bytes of the bucket in a group-mod message and in a group description.
func (b Bucket) EncodedSize() int {
	n := bucketSize + weightPropSize
	for _, a := range b.Actions {
		n += actionSize(a)
	}
	return n
}

// EncodedSize returns the bytes of the bundle message that adds the whole group at once. It may be more than
// MaxMessage.
func (g *Group) EncodedSize() int { return bundleAddSize + groupModSize + g.bodySize() }

// TooWide reports whether a switch could not describe the group: its description must fit into one message of
// MaxMessage bytes. Open vSwitch does not check that. It sends a description with a wrapped length, and
// ovs-vswitchd aborts when another group follows in the reply, so such a group must never be installed, in
// parts or not.
func (g *Group) TooWide() bool { return groupDescSize+g.bodySize() > MaxMessage }

// Parts returns the buckets in runs that fit into bundle messages of at most limit bytes each: the first run
// is for the message that adds the group, each further one for an insert_bucket message. There is always a
// first run, maybe empty. A bucket that does not fit by itself makes a run of its own, which then exceeds
// limit.
func (g *Group) Parts(limit int) [][]Bucket {
	if g.EncodedSize() <= limit {
		return [][]Bucket{g.Buckets}
	}
	var parts [][]Bucket
	used := bundleAddSize + groupModSize + g.methodSize()
	from := 0
	for i, b := range g.Buckets {
		n := b.EncodedSize()
		if used+n > limit && i > from {
			parts = append(parts, g.Buckets[from:i:i])
			from, used = i, bundleAddSize+groupModSize
		}
		used += n
	}
	return append(parts, g.Buckets[from:])
}

func (g *Group) bodySize() int {
	n := g.methodSize()
	for _, b := range g.Buckets {
		n += b.EncodedSize()
	}
	return n
}

func (g *Group) methodSize() int {
	switch g.Method {
	case HashSrc:
		return methodPropSize + 4 + 4 + 4 + 4
	case HashSrc6:
		return pad8(methodPropSize + 4 + 4 + 4 + 16)
	}
	return methodPropSize
}

func actionSize(a Action) int {
	switch a := a.(type) {
	case Output, ToController, Resubmit, ClearInPort, FromLocal, ClearCT:
		return 16
	case ToMeter, ToGroup, DecTTL, PopVLAN:
		return 8
	case Copy:
		return 24
	case SetAddr:
		return pad8(4 + 4 + a.Field.Bits()/8)
	case SetField:
		return setFieldSize(a)
	case CT:
		return ctSize(a)
	case Learn:
		return learnSize(a)
	}
	return 0
}

func setFieldSize(a SetField) int {
	n := a.Field.Bits() / 8
	if a.Mask != 1<<a.Field.Bits()-1 {
		n *= 2
	}
	return pad8(4 + 4 + n)
}

func ctSize(a CT) int {
	n := 24
	switch {
	case a.NAT.Kind == NATNone:
	case a.NAT.Kind == NATExisting || a.NAT.Addr.IsUnspecified():
		n += 16
	default:
		k := 16 + a.NAT.Addr.BitLen()/8
		if a.NAT.PortMin != 0 {
			k += 2
		}
		if a.NAT.PortMax != 0 {
			k += 2
		}
		n += pad8(k)
	}
	if a.MarkFromReg1 {
		n += 24
	}
	if a.Aside {
		n += 16
	}
	return n
}

func learnSize(a Learn) int {
	n := 32 + 14 // nx_action_learn; the load
	if a.Limit != 0 {
		n += 8 // nx_action_learn2
	}
	if a.Result.N != 0 {
		n += 4
	}
	if a.EthType != 0 {
		n += 10
	}
	for _, m := range a.Match {
		if m.N != 0 {
			n += 14
		}
	}
	return pad8(n)
}

func pad8(n int) int { return (n + 7) &^ 7 }
