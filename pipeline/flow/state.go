package flow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Key identifies a flow: adding another flow with the same Key replaces it.
type Key struct {
	Table    uint8
	Priority uint16
	Match    Match
}

// Flow is one flow entry. It is immutable once it is in a State or Delta. No Actions means drop.
type Flow struct {
	Key
	Cookie  uint64
	Actions []Action
}

// String returns the flow as one line of ovs-ofctl's flow syntax.
func (f *Flow) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cookie=%#x,table=%d,priority=%d", f.Cookie, f.Table, f.Priority)
	if m := f.Match.String(); m != "" {
		b.WriteString("," + m)
	}
	b.WriteString(",actions=" + actions(f.Actions))
	return b.String()
}

// Forwards reports whether the flow forwards all packets as a learning switch does.
func (f *Flow) Forwards() bool {
	return f.Match == Match{} && slices.Equal(f.Actions, []Action{Output{Port: PortNormal}})
}

// Others is what the flows of other owners in a table do with packets.
type Others uint8

// OthersNone: there are none. OthersForward: each forwards all packets (Flow.Forwards). OthersDecide: some do
// anything else.
const (
	OthersNone Others = iota
	OthersForward
	OthersDecide
)

// Equal reports whether both flows have the same key, cookie and actions.
func (f *Flow) Equal(o *Flow) bool {
	return f.Key == o.Key && f.Cookie == o.Cookie && slices.Equal(f.Actions, o.Actions)
}

// Method is how a select group picks the bucket of a packet (the OVS property selection_method).
type Method uint8

// DPHash lets the datapath hash the 5-tuple; HashSrc and HashSrc6 hash the client's address (ip_src or
// ipv6_src) and reg3 in the slow path.
const (
	DPHash Method = iota
	HashSrc
	HashSrc6
	// UnknownMethod is anything else that a switch reported.
	UnknownMethod
)

// Group is a group of type select. It is immutable once it is in a State or Delta.
type Group struct {
	ID      uint32
	Method  Method
	Buckets []Bucket
}

// Bucket is one choice of a Group. Weight is its share relative to the other buckets.
type Bucket struct {
	ID      uint32 // at most 0xffffff00 (OpenFlow 1.5.1 §7.3.4.3.1)
	Weight  uint16
	Actions []Action
}

// Equal reports whether both groups are the same, bucket by bucket.
func (g *Group) Equal(o *Group) bool {
	return g.ID == o.ID && g.Method == o.Method && slices.EqualFunc(g.Buckets, o.Buckets, Bucket.Equal)
}

// Equal reports whether both buckets are the same.
func (b Bucket) Equal(o Bucket) bool {
	return b.ID == o.ID && b.Weight == o.Weight && slices.Equal(b.Actions, o.Actions)
}

// String returns the bucket in ovs-ofctl syntax, without the leading "bucket=".
func (b Bucket) String() string {
	return fmt.Sprintf("bucket_id:%d,weight:%d,actions=%s", b.ID, b.Weight, actions(b.Actions))
}

// Head returns the group in ovs-ofctl syntax without its buckets.
func (g *Group) Head() string {
	s := fmt.Sprintf("group_id=%d,type=select,selection_method=", g.ID)
	switch g.Method {
	case DPHash:
		return s + "dp_hash"
	case HashSrc:
		return s + "hash,fields(reg3,ip_src)"
	case HashSrc6:
		return s + "hash,fields(reg3,ipv6_src)"
	}
	return s + "unknown"
}

// String returns the group as one line of ovs-ofctl's group syntax, without a limit of its length.
func (g *Group) String() string {
	var b strings.Builder
	b.WriteString(g.Head())
	for _, k := range g.Buckets {
		b.WriteString(",bucket=" + k.String())
	}
	return b.String()
}

// Meter bounds a rate of packets; what exceeds it is dropped.
type Meter struct {
	ID    uint32
	Rate  uint32 // packets per second
	Burst uint32 // packets
}

// String returns the meter as ovs-ofctl add-meter takes it.
func (m Meter) String() string {
	return fmt.Sprintf("meter=%d,pktps,burst,stats,band=type=drop,rate=%d,burst_size=%d",
		m.ID, m.Rate, m.Burst)
}

// State is the set of one owner's flows, groups and meters that a switch has, or should have.
// It is not safe for concurrent use while it is being changed.
type State struct {
	Flows  map[Key]*Flow
	Groups map[uint32]*Group
	Meters map[uint32]Meter
}

// NewState returns an empty State.
func NewState() *State {
	return &State{Flows: map[Key]*Flow{}, Groups: map[uint32]*Group{}, Meters: map[uint32]Meter{}}
}

// SortedFlows returns the flows by table, falling priority and match text.
func (s *State) SortedFlows() []*Flow { return sortFlows(slices.Collect(maps.Values(s.Flows))) }

// SortedGroups returns the groups by id.
func (s *State) SortedGroups() []*Group { return sortGroups(slices.Collect(maps.Values(s.Groups))) }

// SortedMeters returns the meters by id.
func (s *State) SortedMeters() []Meter {
	return slices.SortedFunc(maps.Values(s.Meters), func(a, b Meter) int { return cmp.Compare(a.ID, b.ID) })
}

func sortFlows(fs []*Flow) []*Flow {
	type keyed struct {
		f    *Flow
		text string
	}
	ks := make([]keyed, len(fs))
	for i, f := range fs {
		ks[i] = keyed{f, f.Match.String()}
	}
	slices.SortFunc(ks, func(a, b keyed) int {
		return cmp.Or(
			cmp.Compare(a.f.Table, b.f.Table),
			cmp.Compare(b.f.Priority, a.f.Priority),
			cmp.Compare(a.text, b.text),
		)
	})
	for i, k := range ks {
		fs[i] = k.f
	}
	return fs
}

func sortGroups(gs []*Group) []*Group {
	slices.SortFunc(gs, func(a, b *Group) int { return cmp.Compare(a.ID, b.ID) })
	return gs
}

func actions(as []Action) string {
	if len(as) == 0 {
		return "drop"
	}
	b := make([]string, len(as))
	for i, a := range as {
		b[i] = a.String()
	}
	return strings.Join(b, ",")
}
