package dataplane

// Object is something that a plane has installed for Services, as the tools of its kind print it.
type Object struct {
	Plane string `json:"plane"` // ovs, iptables, nftables or hns
	// Service is the Service port, such as "default/web:http TCP IPv4"; "": all were asked for.
	Service string `json:"service,omitempty"`
	Text    string `json:"text"`
	// Packets and Bytes are the object's counters; nil: it has none.
	Packets *uint64 `json:"packets,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
}

// Listing collects installed objects, up to a limit.
type Listing struct {
	Most    int // the limit
	Objects []Object
	More    int // number of objects that are not in Objects
}

// Add appends an object without counters. Beyond the limit it only increments More.
func (l *Listing) Add(text string) { l.add(Object{Text: text}) }

// AddCounted is like Add, for an object with counters.
func (l *Listing) AddCounted(text string, packets, bytes uint64) {
	l.add(Object{Text: text, Packets: &packets, Bytes: &bytes})
}

func (l *Listing) add(o Object) {
	if len(l.Objects) >= l.Most {
		l.More++
		return
	}
	l.Objects = append(l.Objects, o)
}
