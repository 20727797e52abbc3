package hns

import (
	"encoding/json"
	"errors"
	"unsafe"

	"golang.org/x/sys/windows"
)

// hcsshim has no enumeration that does not open every object; these calls are all that is missing for a cheap audit.
var (
	computenetwork = windows.NewLazySystemDLL("computenetwork.dll")
	vmcompute      = windows.NewLazySystemDLL("vmcompute.dll")

	procEnumerateNetworks      = computenetwork.NewProc("HcnEnumerateNetworks")
	procEnumerateEndpoints     = computenetwork.NewProc("HcnEnumerateEndpoints")
	procEnumerateLoadBalancers = computenetwork.NewProc("HcnEnumerateLoadBalancers")
	procHNSCall                = vmcompute.NewProc("HNSCall")
)

// enumerate calls an HcnEnumerate function and returns the ids of the objects that the filter (a JSON object of strings;
// nil: all) selects.
//
//	HRESULT HcnEnumerateX(PCWSTR Query, PWSTR* X, PWSTR* ErrorRecord)
func enumerate(proc *windows.LazyProc, filter map[string]string) ([]string, error) {
	query := struct {
		SchemaVersion SchemaVersion
		Filter        string `json:",omitempty"`
	}{SchemaVersion: Schema2}
	if filter != nil {
		f, err := json.Marshal(filter)
		if err != nil {
			return nil, err
		}
		query.Filter = string(f)
	}
	text, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	q, err := windows.UTF16PtrFromString(string(text))
	if err != nil {
		return nil, err
	}
	var out, record *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(q)), uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&record)))
	list, why := takeString(out), takeString(record)
	if err := ParseError(proc.Name, uint32(hr), why); err != nil {
		return nil, err
	}
	var ids []string
	if list != "" {
		if err := json.Unmarshal([]byte(list), &ids); err != nil {
			return nil, &Error{Call: proc.Name, Text: "the list of ids does not parse: " + err.Error()}
		}
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
	call := "HNSCall GET " + path
	method, err1 := windows.UTF16PtrFromString("GET")
	where, err2 := windows.UTF16PtrFromString(path)
	object, err3 := windows.UTF16PtrFromString("")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	var response *uint16
	hr, _, _ := procHNSCall.Call(uintptr(unsafe.Pointer(method)), uintptr(unsafe.Pointer(where)), uintptr(unsafe.Pointer(object)),
		uintptr(unsafe.Pointer(&response)))
	text := takeString(response)
	if err := ParseError(call, uint32(hr), ""); err != nil {
		return err
	}
	return parseV1(call, text, out)
}

// takeString copies and frees a string that HNS allocated with CoTaskMemAlloc.
func takeString(p *uint16) string {
	if p == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(p))
	return windows.UTF16PtrToString(p)
}
