package hnsfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Object is an HNS object: what was sent, with an ID.
type Object map[string]any

// kind is one of the sorts of objects.
type kind string

const (
	network      kind = "Network"
	endpoint     kind = "Endpoint"
	loadBalancer kind = "LoadBalancer"
	namespace    kind = "Namespace"
	route        kind = "SdnRoute"
)

var kinds = []kind{network, endpoint, loadBalancer, namespace, route}

// Reply is the answer to one call.
type Reply struct {
	HResult uint32
	Out     string // the call's output string
	Record  string // the error record
	Handle  uint64
	ID      string // of a created object
}

// Call is one entry of the log.
type Call struct {
	Func string
	Args []string
	Err  bool
}

// Server is the fake. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex // protects all below
	version hns.Version
	objects map[kind]map[string]Object
	order   map[kind][]string
	claims  map[string]string // what only one object can have (claimsOf) -> its id
	handles map[uint64]handle
	nextH   uint64
	nextID  uint64
	calls   []Call
	faults  []*Fault
	echo    func(kind string, o Object)
	states  map[string]int // of load balancers that are not healthy
	// forAll is the State of every load balancer that is created; noStates: HNS reports none.
	forAll     int
	noStates   bool
	registered map[*registration]bool
	macs       json.RawMessage // management MAC addresses; nil: none
	// dangling counts the deletions of endpoints that a load balancer still referred to.
	dangling int
}

type handle struct {
	kind kind
	id   string
}

// New returns a fake without objects.
func New(v hns.Version) *Server {
	s := &Server{version: v, objects: map[kind]map[string]Object{}, order: map[kind][]string{}, handles: map[uint64]handle{}, claims: map[string]string{},
		states: map[string]int{}, registered: map[*registration]bool{}}
	for _, k := range kinds {
		s.objects[k] = map[string]Object{}
	}
	return s
}

// Fault makes calls fail.
type Fault struct {
	Func  string // the function; "": every one
	Times int    // how often it still fails; negative: always
	// Match, if not nil, selects calls by their arguments.
	Match func(args []string) bool
	Code  uint32 // of the error record
	Text  string
	// Applied makes the call do its work before it fails: the answer is lost.
	Applied bool
	// Do, if not nil, runs in place of the call, with the fake unlocked.
	Do func()
}

// Inject adds a fault. The first one that matches counts.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Call makes one DLL call.
func (s *Server) Call(fn string, args ...string) Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.callWithFaults(fn, args)
	s.calls = append(s.calls, Call{fn, slices.Clone(args), int32(r.HResult) < 0 || r.Record != ""})
	return r
}

func (s *Server) callWithFaults(fn string, args []string) Reply {
	for _, f := range s.faults {
		if f.Times == 0 || f.Func != "" && f.Func != fn || f.Match != nil && !f.Match(args) {
			continue
		}
		f.Times--
		if f.Do != nil {
			s.mu.Unlock()
			f.Do()
			s.mu.Lock()
		}
		if f.Code == 0 {
			break
		}
		if f.Applied {
			s.call(fn, args)
		}
		return failure(f.Code, f.Text)
	}
	return s.call(fn, args)
}

func failure(code uint32, text string) Reply {
	record, _ := json.Marshal(struct {
		Success   bool
		Error     string
		ErrorCode uint32
	}{false, text + " ", code})
	return Reply{HResult: code, Record: string(record)}
}

func (s *Server) call(fn string, args []string) Reply {
	switch fn {
	case "HNSCall":
		return s.v1(args)
	case "HcnRegisterServiceCallback":
		return Reply{}
	}
	for _, k := range kinds {
		op, ok := strings.CutSuffix(fn, string(k))
		if !ok {
			op, ok = strings.CutSuffix(fn, string(k)+"s")
		}
		if !ok {
			op, ok = strings.CutSuffix(fn, string(k)+"Properties")
		}
		if ok {
			return s.object(k, strings.TrimPrefix(op, "Hcn"), args)
		}
	}
	return failure(hns.CodeNotImplemented, "no such function: "+fn)
}

// object makes a call about objects of one kind.
func (s *Server) object(k kind, op string, args []string) Reply {
	switch op {
	case "Enumerate":
		return s.enumerate(k, args[0])
	case "Open":
		id := hns.CanonicalID(args[0])
		if s.objects[k][id] == nil {
			return failure(notFound(k), "Element not found.")
		}
		return Reply{Handle: s.open(k, id)}
	case "Close":
		delete(s.handles, parseHandle(args[0]))
		return Reply{}
	case "Query":
		h, ok := s.handles[parseHandle(args[0])]
		if !ok || s.objects[k][h.id] == nil {
			return failure(notFound(k), "Element not found.")
		}
		text, _ := json.Marshal(s.echoed(k, s.objects[k][h.id]))
		return Reply{Out: string(text)}
	case "Create":
		return s.create(k, args)
	case "Modify":
		return s.modify(k, args)
	case "Delete":
		return s.remove(k, hns.CanonicalID(args[0]))
	}
	return failure(hns.CodeNotImplemented, "no such function: Hcn"+op+string(k))
}

func notFound(k kind) uint32 {
	switch k {
	case network:
		return hns.CodeNetworkNotFound
	case endpoint:
		return hns.CodeEndpointNotFound
	}
	return hns.CodeElementNotFound
}

func (s *Server) open(k kind, id string) uint64 {
	s.nextH++
	s.handles[s.nextH] = handle{k, id}
	return s.nextH
}

func formatHandle(h uint64) string { return strconv.FormatUint(h, 10) }

func parseHandle(text string) (h uint64) {
	_, _ = fmt.Sscan(text, &h)
	return h
}

// enumerate lists ids, with a filter by ID, Name or VirtualNetwork.
func (s *Server) enumerate(k kind, query string) Reply {
	var q struct{ Filter string }
	if err := json.Unmarshal([]byte(query), &q); err != nil {
		return failure(hns.CodeInvalidJSON, "The query does not parse.")
	}
	filter := map[string]string{}
	if q.Filter != "" {
		if err := json.Unmarshal([]byte(q.Filter), &filter); err != nil {
			return failure(hns.CodeInvalidJSON, "The filter does not parse.")
		}
	}
	ids := []string{}
	for _, id := range s.order[k] {
		o := s.objects[k][id]
		if selects(filter, o) {
			ids = append(ids, s.echoed(k, Object{"ID": id})["ID"].(string))
		}
	}
	text, _ := json.Marshal(ids)
	return Reply{Out: string(text)}
}

// selects reports whether an object has what a filter asks for; an empty value matches nothing but itself.
func selects(filter map[string]string, o Object) bool {
	for key, want := range filter {
		if key == "VirtualNetwork" {
			key = "HostComputeNetwork"
		}
		if have, _ := o[key].(string); !strings.EqualFold(have, want) {
			return false
		}
	}
	return true
}

// add enters an object and returns its id.
func (s *Server) add(k kind, o Object) string {
	id, _ := o["ID"].(string)
	id = hns.CanonicalID(id)
	if id == "" {
		s.nextID++
		id = fmt.Sprintf("%08x-0000-4000-8000-%012x", s.nextID, s.nextID)
	}
	o["ID"] = id
	s.put(k, id, o)
	s.order[k] = append(s.order[k], id)
	if k == network {
		s.notify(networkCreated)
	}
	if k == loadBalancer && s.forAll != 0 {
		s.states[id] = s.forAll
	}
	return id
}

// put sets the body of an object.
func (s *Server) put(k kind, id string, o Object) {
	for _, c := range claimsOf(k, s.objects[k][id]) {
		if s.claims[c] == id {
			delete(s.claims, c)
		}
	}
	s.objects[k][id] = o
	for _, c := range claimsOf(k, o) {
		s.claims[c] = id
	}
}

func (s *Server) del(k kind, id string) {
	for _, c := range claimsOf(k, s.objects[k][id]) {
		if s.claims[c] == id {
			delete(s.claims, c)
		}
	}
	delete(s.objects[k], id)
	delete(s.states, id)
	if k == network {
		s.notify(networkDeleted)
	}
	s.order[k] = slices.DeleteFunc(s.order[k], func(o string) bool { return o == id })
	maps.DeleteFunc(s.handles, func(_ uint64, h handle) bool { return h.kind == k && h.id == id })
}
