package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Codes of HNS errors (HRESULTs, winerror.h) that nkp distinguishes or names in messages.
const (
	CodeElementNotFound  uint32 = 0x80070490
	CodeNetworkNotFound  uint32 = 0x803B0001
	CodeEndpointNotFound uint32 = 0x803B0002
	CodePolicyNotFound   uint32 = 0x803B0008
	CodePortExists       uint32 = 0x803B0013
	CodeHasReferences    uint32 = 0x803B002C
	CodeAddressReserved  uint32 = 0x803B002F
	CodeNotImplemented   uint32 = 0x80004001
	CodeInvalidPolicy    uint32 = 0x803B000D
	CodeInvalidJSON      uint32 = 0x803B001B
	CodeInvalidIP        uint32 = 0x803B001E
	CodeFail             uint32 = 0x80004005

	codeAccessDenied   uint32 = 0x80070005
	codeAlreadyExists  uint32 = 0x800700B7
	codeNotStarted     uint32 = 0x80070426
	codeDisabled       uint32 = 0x80070422
	codeUnavailable    uint32 = 0x800706BA
	codeCallFailed     uint32 = 0x800706BE
	codeNotRegistered  uint32 = 0x80040154
	codeAdapterMissing uint32 = 0x803B0006
)

// What to do about errors that no retry mends by itself. A first start meets them.
const (
	hintRights  = "run nkp as a service, in a HostProcess container as SYSTEM, or from an elevated prompt"
	hintService = "the Host Network Service does not run: Start-Service hns (Get-Service hns, and the " +
		"event log of Hyper-V-VmSwitch, say why not)"
	hintAdapter = "no network adapter of that name exists, or none is connected (Get-NetAdapter)"
	hintFeature = "install the Containers feature and restart Windows: " +
		"Install-WindowsFeature Containers -Restart"
)

// codes are the names of the codes, and what to do about those that have a hint.
var codes = map[uint32]struct{ name, hint string }{
	CodeElementNotFound:  {name: "ERROR_NOT_FOUND"},
	CodeNetworkNotFound:  {name: "HCN_E_NETWORK_NOT_FOUND"},
	CodeEndpointNotFound: {name: "HCN_E_ENDPOINT_NOT_FOUND"},
	CodePolicyNotFound:   {name: "HCN_E_POLICY_NOT_FOUND"},
	CodePortExists:       {name: "HCN_E_PORT_ALREADY_EXISTS"},
	CodeHasReferences:    {name: "HCN_E_ENTITY_HAS_REFERENCES"},
	CodeAddressReserved:  {name: "HCN_E_ADDR_INVALID_OR_RESERVED"},
	CodeNotImplemented:   {name: "E_NOTIMPL"},
	CodeInvalidPolicy:    {name: "HCN_E_INVALID_POLICY"},
	CodeInvalidJSON:      {name: "HCN_E_INVALID_JSON"},
	CodeInvalidIP:        {name: "HCN_E_INVALID_IP"},
	CodeFail:             {name: "E_FAIL"},

	codeAlreadyExists:  {name: "ERROR_ALREADY_EXISTS"},
	codeAccessDenied:   {"E_ACCESSDENIED", hintRights},
	codeNotStarted:     {"ERROR_SERVICE_NOT_ACTIVE", hintService},
	codeDisabled:       {"ERROR_SERVICE_DISABLED", hintService},
	codeUnavailable:    {"RPC_S_SERVER_UNAVAILABLE", hintService},
	codeCallFailed:     {"RPC_S_CALL_FAILED", hintService},
	codeNotRegistered:  {"REGDB_E_CLASSNOTREG", hintFeature},
	codeAdapterMissing: {"HCN_E_ADAPTER_NOT_FOUND", hintAdapter},
}

// Error is the error that HNS returned for a call.
type Error struct {
	Call string // the function that failed, such as HcnCreateLoadBalancer
	Code uint32 // HRESULT; 0: none was given
	Text string // HNS's own words
}

// Error returns the call, HNS's words, the code with its name, and what to do if that is known.
func (e *Error) Error() string {
	if hint := codes[e.Code].hint; hint != "" {
		return e.text() + ": " + hint
	}
	return e.text()
}

func (e *Error) text() string {
	s := e.Call + " failed"
	if e.Text != "" {
		s += ": " + strings.TrimRight(e.Text, ". ")
	}
	if e.Code == 0 {
		return s
	}
	if name := codes[e.Code].name; name != "" {
		return fmt.Sprintf("%s (%s, 0x%08x)", s, name, e.Code)
	}
	return fmt.Sprintf("%s (0x%08x)", s, e.Code)
}

// ParseError builds the error of a call from its HRESULT and error record. HNS may fail a call with S_OK and
// a record: it returns nil only if there is neither. The record's code wins: it is the more specific one.
func ParseError(call string, hresult uint32, record string) error {
	record = strings.TrimSpace(record)
	if int32(hresult) >= 0 && record == "" {
		return nil
	}
	e := &Error{Call: call, Code: hresult}
	var r struct {
		Error     string
		ErrorCode json.Number
	}
	switch err := json.Unmarshal([]byte(record), &r); {
	case record == "":
	case err != nil:
		e.Text = record
	default:
		e.Text = r.Error
		if n, err := r.ErrorCode.Int64(); err == nil && n != 0 {
			e.Code = uint32(n) // some versions print it as a negative number
		}
	}
	return e
}

// parseV1 unmarshals the output of an answer of HNS's first API, or returns its error.
func parseV1(call, text string, out any) error {
	r := struct {
		Success bool
		Output  any
	}{Output: out}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return &Error{Call: call, Text: "the answer does not parse: " + err.Error()}
	}
	if !r.Success {
		return ParseError(call, 0, text)
	}
	return nil
}

// PolicyLists are load balancers as HNS's first API lists them.
type PolicyLists []struct {
	ID    string
	State int // 0: this HNS does not report it
}

// States returns the State of each load balancer, by id.
func (l PolicyLists) States() map[string]int {
	states := make(map[string]int, len(l))
	for _, p := range l {
		states[CanonicalID(p.ID)] = p.State
	}
	return states
}

// HasCode reports whether HNS failed with this code.
func HasCode(err error, code uint32) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Class returns the class of an error in the terms of kube-proxy's metrics: port_already_exists,
// network_not_found, not_implemented, invalid_ip or other.
func Class(err error) string {
	switch {
	case HasCode(err, CodePortExists):
		return "port_already_exists"
	case HasCode(err, CodeNetworkNotFound):
		return "network_not_found"
	case HasCode(err, CodeNotImplemented):
		return "not_implemented"
	case HasCode(err, CodeInvalidIP):
		return "invalid_ip"
	}
	return "other"
}

// IsNotFound reports whether the object that a call names does not exist. HNS has several codes for it.
func IsNotFound(err error) bool {
	return HasCode(err, CodeElementNotFound) || HasCode(err, 0x490) || HasCode(err, CodeNetworkNotFound) ||
		HasCode(err, CodeEndpointNotFound) || HasCode(err, CodePolicyNotFound)
}
