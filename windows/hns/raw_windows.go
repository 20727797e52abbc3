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

func (raw) IDs(k Kind) ([]string, error) { return enumerate(k, nil) }

// open returns the handle of an object, for close.
//
//	HRESULT HcnOpenX(REFGUID Id, PHCN_X X, PWSTR* ErrorRecord)
func (raw) open(k Kind, id string) (handle uintptr, err error) {
	proc := procOf("Open", k, "")
	guid, err := parseGUID(proc, id)
	if err != nil {
		return 0, err
	}
	var record *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle)),
		uintptr(unsafe.Pointer(&record)))
	return handle, ParseError(proc.Name, uint32(hr), takeString(record))
}

func (raw) close(k Kind, handle uintptr) { _, _, _ = procOf("Close", k, "").Call(handle) }

func parseGUID(proc *windows.LazyProc, id string) (windows.GUID, error) {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return guid, &Error{Call: proc.Name, Text: "not an id: " + id}
	}
	return guid, nil
}

// properties returns the object that a handle stands for.
//
//	HRESULT HcnQueryXProperties(HCN_X X, PCWSTR Query, PWSTR* Properties, PWSTR* ErrorRecord)
func (raw) properties(k Kind, handle uintptr) (json.RawMessage, error) {
	const everything = `{"SchemaVersion":{"Major":2,"Minor":0}}`
	var out, record *uint16
	proc := procOf("Query", k, "Properties")
	hr, _, _ := proc.Call(handle, uintptr(unsafe.Pointer(utf16Ptr(everything))), uintptr(unsafe.Pointer(&out)),
		uintptr(unsafe.Pointer(&record)))
	text := takeString(out)
	if err := ParseError(proc.Name, uint32(hr), takeString(record)); err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}

func (r raw) Query(k Kind, id string) (json.RawMessage, error) {
	handle, err := r.open(k, id)
	if err != nil {
		return nil, err
	}
	defer r.close(k, handle)
	return r.properties(k, handle)
}

// Create implements Raw. Of an endpoint, the network's handle comes first. The zero id has HNS choose one.
//
//	HRESULT HcnCreateX(REFGUID Id, PCWSTR Settings, PHCN_X X, PWSTR* ErrorRecord)
func (r raw) Create(k Kind, network string, body []byte) (json.RawMessage, error) {
	var id windows.GUID
	var handle, hr uintptr
	var record *uint16
	proc := procOf("Create", k, "")
	if k == KindEndpoint {
		n, err := r.open(KindNetwork, network)
		if err != nil {
			return nil, err
		}
		defer r.close(KindNetwork, n)
		hr, _, _ = proc.Call(n, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(utf16Ptr(string(body)))),
			uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&record)))
	} else {
		hr, _, _ = proc.Call(uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(utf16Ptr(string(body)))),
			uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&record)))
	}
	if err := ParseError(proc.Name, uint32(hr), takeString(record)); err != nil {
		return nil, err
	}
	defer r.close(k, handle)
	return r.properties(k, handle)
}

// Modify implements Raw. An HNS may lack the function.
//
//	HRESULT HcnModifyX(HCN_X X, PCWSTR Settings, PWSTR* ErrorRecord)
func (r raw) Modify(k Kind, id string, body []byte) (json.RawMessage, error) {
	proc := procOf("Modify", k, "")
	if proc.Find() != nil {
		return nil, &Error{Call: proc.Name, Code: CodeNotImplemented}
	}
	handle, err := r.open(k, id)
	if err != nil {
		return nil, err
	}
	defer r.close(k, handle)

	var record *uint16
	hr, _, _ := proc.Call(handle, uintptr(unsafe.Pointer(utf16Ptr(string(body)))),
		uintptr(unsafe.Pointer(&record)))
	if err := ParseError(proc.Name, uint32(hr), takeString(record)); err != nil {
		return nil, err
	}
	return r.properties(k, handle)
}

// Delete implements Raw.
//
//	HRESULT HcnDeleteX(REFGUID Id, PWSTR* ErrorRecord)
func (raw) Delete(k Kind, id string) error {
	proc := procOf("Delete", k, "")
	guid, err := parseGUID(proc, id)
	if err != nil {
		return err
	}
	var record *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&record)))
	return ParseError(proc.Name, uint32(hr), takeString(record))
}
