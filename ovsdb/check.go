package ovsdb

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What the package's errors are, for errors.Is.
var (
	// ErrUnreachable: the database does not answer.
	ErrUnreachable = errors.New("database not reachable")
	// ErrNoBridge: there is no such bridge.
	ErrNoBridge = errors.New("no such bridge")
	// ErrNoOpenFlow15: the bridge does not speak OpenFlow 1.5.
	ErrNoOpenFlow15 = errors.New("no OpenFlow 1.5")
	// ErrOVN: the bridge is run by ovn-controller.
	ErrOVN = errors.New("run by OVN")
	// ErrNoUplink: the port to the outside is not known.
	ErrNoUplink = errors.New("no uplink")
)

// stateError says in words why it is one or several of these errors.
type stateError struct {
	text string
	is   []error
}

func (e *stateError) Error() string { return e.text }

// Unwrap returns what the error is.
func (e *stateError) Unwrap() []error { return e.is }

func isError(is error, format string, args ...any) error {
	return &stateError{fmt.Sprintf(format, args...), []error{is}}
}

// unreachable returns an ErrUnreachable that says why the database does not answer.
func unreachable(endpoint string, cause error) error {
	text := fmt.Sprintf("Open vSwitch's database at %s is not reachable: %v; "+
		"start ovsdb-server or name its socket with --ovsdb", endpoint, cause)
	return &stateError{text, []error{ErrUnreachable, cause}}
}

// plainList joins at most twenty names.
func plainList(names []string) string {
	var list []string
	for i, n := range names {
		if i == 20 {
			list = append(list, fmt.Sprintf("%d more", len(names)-i))
			break
		}
		list = append(list, plain(n))
	}
	return strings.Join(list, ", ")
}

// Check reports whether the bridge may and can be programmed. Its error is
// ErrNoBridge, ErrOVN or ErrNoOpenFlow15, in this order.
func (s Switch) Check() error {
	bridge := plain(s.Bridge)
	switch {
	case !s.Exists:
		return isError(ErrNoBridge, "bridge %s does not exist; create it or name another with --bridge; "+
			"bridges here: %s", bridge, cmp.Or(plainList(s.Bridges), "none"))
	case s.ovn != "":
		return isError(ErrOVN, "bridge %s is run by OVN (%s), which deletes the flows of others; "+
			"name another bridge with --bridge, or remove what OVN left behind", bridge, s.ovn)
	case !s.OpenFlow15:
		return isError(ErrNoOpenFlow15, "bridge %s does not speak OpenFlow 1.5; "+
			"run ovs-vsctl set Bridge %s protocols=%s, or let --configure-bridge do it",
			bridge, bridge, strings.ReplaceAll(plainList(s.wantProtocols()), ", ", ","))
	}
	return nil
}

const openFlow15 = "OpenFlow15"

// wantProtocols are the bridge's OpenFlow versions and 1.5.
func (s Switch) wantProtocols() []string {
	if len(s.Protocols) == 0 {
		return []string{"OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", openFlow15}
	}
	return append(slices.Clone(s.Protocols), openFlow15)
}

// ovnEvidence searches for the keys that ovn-controller(8) documents under
// "Configuration" and "Open vSwitch Database Usage". It returns "" if there are none.
//
// Not evidence: ovn-localnet-port and ovn-l2gateway-port, which are set on both
// sides of a patch between the integration bridge and a bridge that OVN does not
// run.
func ovnEvidence(
	s Switch, row bridgeRow,
	ports map[string]portRow, interfaces map[string]interfaceRow,
) string {
	// Both keys may carry the chassis' name, for a host with several chassis.
	get := func(key string) string {
		if id := s.SystemIDs["system-id"]; id != "" && s.SystemIDs[key+"-"+id] != "" {
			return s.SystemIDs[key+"-"+id]
		}
		return s.SystemIDs[key]
	}

	bridge := get("ovn-bridge")
	if bridge == "" {
		bridge = "br-int"
	}
	if get("ovn-remote") != "" && bridge == s.Bridge {
		return "external_ids of the Open_vSwitch row have ovn-remote"
	}
	if k := firstKey(row.ExternalIDs, func(k string) bool {
		return strings.HasPrefix(k, "ct-zone-") ||
			k == "ovn-nb-cfg" || k == "ovn-nb-cfg-ts" || k == "ovn-startup-ts"
	}); k != "" {
		return "external_ids of the bridge have " + quote(k)
	}

	found := ""
	for _, id := range row.Ports {
		p := ports[id]
		for _, key := range []string{"ovn-chassis-id", "ovn-l3gateway-port", "ovn-logical-patch-port"} {
			if _, ok := p.ExternalIDs[key]; ok {
				found = least(found, fmt.Sprintf("external_ids of port %s have %s", plain(p.Name), key))
			}
		}
		for _, id := range p.Interfaces {
			if _, ok := interfaces[id].ExternalIDs["ovn-installed"]; ok {
				name := plain(interfaces[id].Name)
				found = least(found, fmt.Sprintf("external_ids of interface %s have ovn-installed", name))
			}
		}
	}
	return found
}

func least(x, y string) string {
	if x == "" || y < x {
		return y
	}
	return x
}
