package hns

import (
	"encoding/json"
	"unsafe"

	"golang.org/x/sys/windows"
)

// OpenRaw returns the HNS of this machine. It fails if this Windows has no HCN API.
func OpenRaw() (Raw, error) {
	if _, err := Open(); err != nil {
		return nil, err
	}
	return raw{}, nil
}

// raw is the Raw that calls this machine's HNS. It has no state.
type raw struct{ machine }

// allObjects is the query without a filter.
const allObjects = `{"SchemaVersion":{"Major":2,"Minor":0}}`

// callHCN calls an Hcn function whose last argument is the error record, which it appends.
func callHCN(fn string, args ...uintptr) error {
	proc := computenetwork.NewProc(fn)
	if err := proc.Find(); err != nil {
		return &Error{Call: fn, Code: CodeNotImplemented}
	}
	var record *uint16
	hr, _, _ := proc.Call(append(args, uintptr(unsafe.Pointer(&record)))...)
	return ParseError(fn, uint32(hr), takeString(record))
}

func (raw) IDs(k Kind) ([]string, error) {
	return enumerate(computenetwork.NewProc("HcnEnumerate"+string(k)+"s"), nil)
}

// open calls f with the handle of an object.
func (raw) open(k Kind, id string, f func(handle uintptr) error) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return &Error{Call: "HcnOpen" + string(k), Text: "not an id: " + id}
	}
	var handle uintptr
	if err := callHCN("HcnOpen"+string(k), uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return err
	}
	defer closeHandle(k, handle)
	return f(handle)
}

func closeHandle(k Kind, handle uintptr) {
	_, _, _ = computenetwork.NewProc("HcnClose" + string(k)).Call(handle)
}

// query returns the object that a handle stands for.
func query(k Kind, handle uintptr) (json.RawMessage, error) {
	q, err := windows.UTF16PtrFromString(allObjects)
	if err != nil {
		return nil, err
	}
	var out *uint16
	err = callHCN("HcnQuery"+string(k)+"Properties", handle, uintptr(unsafe.Pointer(q)), uintptr(unsafe.Pointer(&out)))
	text := takeString(out)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}

func (r raw) Query(k Kind, id string) (object json.RawMessage, err error) {
	err = r.open(k, id, func(h uintptr) error {
		object, err = query(k, h)
		return err
	})
	return object, err
}

func (r raw) Create(k Kind, network string, body []byte) (object json.RawMessage, err error) {
	settings, err := windows.UTF16PtrFromString(string(body))
	if err != nil {
		return nil, err
	}
	var id windows.GUID // zero: HNS chooses
	var handle uintptr
	create := func(args ...uintptr) error {
		args = append(args, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(settings)), uintptr(unsafe.Pointer(&handle)))
		return callHCN("HcnCreate"+string(k), args...)
	}
	if k == KindEndpoint {
		err = r.open(KindNetwork, network, func(h uintptr) error { return create(h) })
	} else {
		err = create()
	}
	if err != nil {
		return nil, err
	}
	defer closeHandle(k, handle)
	return query(k, handle)
}

func (r raw) Modify(k Kind, id string, body []byte) (object json.RawMessage, err error) {
	settings, err := windows.UTF16PtrFromString(string(body))
	if err != nil {
		return nil, err
	}
	err = r.open(k, id, func(h uintptr) error {
		if err := callHCN("HcnModify"+string(k), h, uintptr(unsafe.Pointer(settings))); err != nil {
			return err
		}
		object, err = query(k, h)
		return err
	})
	return object, err
}

func (raw) Delete(k Kind, id string) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return &Error{Call: "HcnDelete" + string(k), Text: "not an id: " + id}
	}
	return callHCN("HcnDelete"+string(k), uintptr(unsafe.Pointer(&guid)))
}
