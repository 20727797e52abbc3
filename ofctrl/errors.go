package ofctrl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrClosed says that the connection was closed on this side.
	ErrClosed = errors.New("openflow connection closed")
	// ErrSilent says that the switch did not answer echo requests in time.
	ErrSilent = errors.New("switch is silent")
	// ErrNoAnswer says that the switch, alive or not, did not answer a request. The error's text names the
	// request.
	ErrNoAnswer = errors.New("switch has not answered")
	// ErrOutcomeUnknown says that the connection broke after the commit was sent and before its reply:
	// read back to learn which state is in force.
	ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")
	// ErrNoCTFlush says that the switch cannot flush single connections (Open vSwitch before 3.1).
	ErrNoCTFlush = errors.New("switch cannot delete conntrack entries over OpenFlow")
	// ErrGroupTooWide says that a group's description would not fit into one message; see flow.Group.TooWide.
	ErrGroupTooWide = errors.New("group is too wide: ovs-vswitchd would abort when asked to describe it")
	// ErrTooLong says that an encoding is above 65,535 bytes.
	ErrTooLong = errors.New("message is too long")
	// ErrProtocol says that the switch sent something that is not OpenFlow 1.5.
	ErrProtocol = errors.New("protocol error")
	// ErrTooMuch says that an answer of the switch is above the limits of this package.
	ErrTooMuch = errors.New("answer is too large")
)

// VersionError says that switch and nkp have no OpenFlow version in common.
type VersionError struct {
	Target Target
	Bridge string   // its name, if known
	Offers []string // what the switch speaks, like "1.0"; empty if it did not say
	Text   string   // the switch's own words, if any
}

func (e *VersionError) Error() string {
	name := e.Bridge
	if name == "" {
		name = e.Target.String()
	}
	s := fmt.Sprintf("bridge %s does not speak OpenFlow 1.5 (protocols lacks OpenFlow15)", name)
	if len(e.Offers) > 0 {
		s += ", only " + strings.Join(e.Offers, ", ")
	}
	if e.Text != "" {
		s += fmt.Sprintf("; the switch says %q", e.Text)
	}
	return s
}

// SwitchError is an OFPT_ERROR message (OpenFlow 1.5.1 §7.5.4).
type SwitchError struct {
	Type, Code   uint16
	Experimenter uint32 // if Type is 0xffff
}

func (e *SwitchError) Error() string { return "switch answers " + e.Reason() }

// Reason returns the error's name as Open vSwitch's documentation has it, or its numbers.
func (e *SwitchError) Reason() string { return reason(e.Type, e.Code, e.Experimenter) }

// Op is an operation on an object.
type Op string

// The operations of a Delta.
const (
	OpSet Op = "set"
	OpDel Op = "delete"
)

// Rejection is one object that was refused, by the switch or before it was sent.
type Rejection struct {
	Op Op
	// Object is a *flow.Flow, *flow.Group, flow.Meter, flow.Learned, GroupID or MeterID.
	Object any
	Cause  error // a *SwitchError, or why it was not sent
}

// Reason returns why in a few words.
func (r Rejection) Reason() string {
	var s *SwitchError
	if errors.As(r.Cause, &s) {
		return s.Reason()
	}
	return r.Cause.Error()
}

// String returns operation, object and reason; a long object is cut.
func (r Rejection) String() string {
	const most = 300
	text := describe(r.Object)
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf("%s %s: %s", r.Op, text, r.Reason())
}

func describe(object any) string {
	switch o := object.(type) {
	case *flow.Flow:
		return "flow " + o.String()
	case *flow.Group:
		return "group " + o.Head()
	case flow.Meter:
		return o.String()
	case flow.Learned:
		return fmt.Sprintf("learned flows table=%d,cookie=%#x", o.Table, o.Cookie)
	}
	return fmt.Sprint(object)
}

// GroupID and MeterID name an object to be deleted in a Rejection.
type (
	GroupID uint32
	MeterID uint32
)

func (g GroupID) String() string { return fmt.Sprintf("group_id=%d", uint32(g)) }
func (m MeterID) String() string { return fmt.Sprintf("meter=%d", uint32(m)) }

// Stage is the part of a transaction that failed.
type Stage string

// The stages of a transaction, in their order.
const (
	StageMeters Stage = "meters" // nothing but meters was sent
	StageBundle Stage = "bundle" // flows and groups were refused; the bundle was discarded
	StageCommit Stage = "commit" // the bundle failed as a whole; nothing of it is in force
	StageAfter  Stage = "after"  // flows and groups are in force; deleting meters failed
)

// TxError says that a transaction failed, completely or in part.
type TxError struct {
	Stage    Stage
	Rejected []Rejection // in the order of the Delta; at most maxRejections of them
	More     int         // how many were left out of Rejected
	Cause    error       // failure in addition to or instead of single objects; may be nil
}

// maxRejections bounds TxError.Rejected.
const maxRejections = 1000

// Installed reports whether the transaction's flows and groups are in force nevertheless.
func (e *TxError) Installed() bool { return e.Stage == StageAfter }

func (e *TxError) Error() string {
	var s string
	switch n := len(e.Rejected) + e.More; {
	case n == 1:
		s = e.Rejected[0].String()
	case n > 1:
		s = fmt.Sprintf("%d objects refused, first: %s", n, e.Rejected[0])
	case e.Cause != nil:
		s = e.Cause.Error()
	}
	if e.Installed() {
		return "installed, but afterwards: " + s
	}
	return "nothing installed: " + s
}

// Unwrap returns the causes, so that errors.Is and errors.As find them.
func (e *TxError) Unwrap() []error {
	var out []error
	if e.Cause != nil {
		out = append(out, e.Cause)
	}
	for _, r := range e.Rejected {
		out = append(out, r.Cause)
	}
	return out
}
