package hns

import (
	"encoding/json"
	"unsafe"

	"golang.org/x/sys/windows"
)

// hcsshim has no enumeration that does not open every object, returns objects without the fields that it does
// not know, and hides the codes of some errors. These calls are for that. A pointer must be converted to
// uintptr in the very call of a procedure: only then does what it points to stay in its place.
var (
	computenetwork = windows.NewLazySystemDLL("computenetwork.dll")
	procHNSCall    = windows.NewLazySystemDLL("vmcompute.dll").NewProc("HNSCall")
)

// procOf returns a function of the HCN API, such as HcnOpenNetwork.
func procOf(op string, k Kind, suffix string) *windows.LazyProc {
	return computenetwork.NewProc("Hcn" + op + string(k) + suffix)
}

// utf16Ptr returns a string as HNS takes it. The text is JSON or constant, so that it has no NUL, the one
// error there is.
func utf16Ptr(text string) *uint16 {
	p, err := windows.UTF16PtrFromString(text)
	if err != nil {
		panic(err)
	}
	return p
}

// takeString copies and frees a string that HNS allocated with CoTaskMemAlloc.
func takeString(p *uint16) string {
	if p == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(p))
	return windows.UTF16PtrToString(p)
}

// enumerate returns the ids of the objects of a kind that the filter (a JSON object of strings; nil: all)
// selects.
//
//	HRESULT HcnEnumerateX(PCWSTR Query, PWSTR* X, PWSTR* ErrorRecord)
func enumerate(k Kind, filter map[string]string) ([]string, error) {
	query := struct {
		SchemaVersion SchemaVersion
		Filter        string `json:",omitempty"`
	}{SchemaVersion: Schema2}
	if filter != nil {
		text, err := json.Marshal(filter)
		if err != nil {
			return nil, err
		}
		query.Filter = string(text)
	}
	text, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}

	var out, record *uint16
	proc := procOf("Enumerate", k, "s")
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(utf16Ptr(string(text)))), uintptr(unsafe.Pointer(&out)),
		uintptr(unsafe.Pointer(&record)))
	list := takeString(out)
	if err := ParseError(proc.Name, uint32(hr), takeString(record)); err != nil {
		return nil, err
	}
	if list == "" {
		return nil, nil
	}

	var ids []string
	if err := json.Unmarshal([]byte(list), &ids); err != nil {
		return nil, &Error{Call: proc.Name, Text: "the list of ids does not parse: " + err.Error()}
	}
	for i, id := range ids {
		ids[i] = CanonicalID(id)
	}
	return ids, nil
}

// listV1 calls HNS's first API (HNSCall GET) and unmarshals its output into out.
//
//	HRESULT HNSCall(PCWSTR Method, PCWSTR Path, PCWSTR Object, PWSTR* Response)
func listV1(path string, out any) error {
	var response *uint16
	hr, _, _ := procHNSCall.Call(uintptr(unsafe.Pointer(utf16Ptr("GET"))),
		uintptr(unsafe.Pointer(utf16Ptr(path))), uintptr(unsafe.Pointer(utf16Ptr(""))),
		uintptr(unsafe.Pointer(&response)))
	text, call := takeString(response), "HNSCall GET "+path
	if err := ParseError(call, uint32(hr), ""); err != nil {
		return err
	}
	return parseV1(call, text, out)
}
