package dataplane

// Object is something that a plane has installed for Services, as the tools of its kind print it.
type Object struct {
	Text string `json:"text"`
	// Packets and Bytes are what it has counted; nil: it does not count.
	Packets *uint64 `json:"packets,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
}

// Counted returns an Object that counts.
func Counted(text string, packets, bytes uint64) Object { return Object{text, &packets, &bytes} }

// Listing collects installed objects, at most Most.
type Listing struct {
	Most    int
	Objects []Object
	More    int // number of objects that are not in Objects
}

// Full reports whether Add only counts what it is given.
func (l *Listing) Full() bool { return len(l.Objects) >= l.Most }

// Add appends an object, or counts it.
func (l *Listing) Add(o Object) {
	if l.Full() {
		l.More++
		return
	}
	l.Objects = append(l.Objects, o)
}
