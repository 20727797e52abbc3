//go:build linux

package ofctrl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// TestConcurrent commits, reads back, counts and sends packets from many goroutines over one connection.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{OnPacketIn: func(*PacketIn) {}})
	want := bigState(200)
	all := flow.Diff(flow.NewState(), want)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := i * 25; k < i*25+25; k++ {
				d := &flow.Delta{SetGroups: all.SetGroups[k : k+1]}
				for _, f := range all.SetFlows {
					if f.Actions[1] == flow.Action(flow.ToGroup{ID: d.SetGroups[0].ID}) {
						d.SetFlows = append(d.SetFlows, f)
					}
				}
				if _, err := c.Commit(t.Context(), d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			for range 10 {
				if _, err := c.ReadBack(t.Context(), ownFilter); err != nil {
					t.Error(err)
				}
				if _, err := c.FlowCount(t.Context(), 0, 0); err != nil {
					t.Error(err)
				}
				frame := udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x")
				if err := c.PacketOut(t.Context(), 1, frame, flow.ToController{MaxLen: 128}); err != nil {
					t.Error(err)
				}
				bad := &flow.Delta{SetFlows: []*flow.Flow{fl(1, 1, flow.Match{}, flow.DecTTL{})}}
				var tx *TxError
				if _, err := c.Commit(t.Context(), bad); !errors.As(err, &tx) || len(tx.Rejected) != 1 || tx.Rejected[0].Object != bad.SetFlows[0] {
					t.Errorf("%+v", err)
				}
			}
		})
	}
	wg.Wait()
	wantSame(t, mustRead(t, c).State, want)
}

// TestOtherTables has flows of the state and of others in and outside the filter's tables.
func TestOtherTables(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	f := ownFilter
	f.Cookie, f.CookieMask = 0x6e6b<<48, 0xffff<<48
	var flows []string
	for table := range 60 {
		flows = append(flows, fmt.Sprintf("cookie=0x6e6b00000000%04x,table=%d,actions=drop", table, table))
		if table%2 == 0 {
			flows = append(flows, fmt.Sprintf("cookie=0x6e6b80000000%04x,table=%d,priority=7,actions=drop", table, table))
		}
		flows = append(flows, fmt.Sprintf("cookie=0x77,table=%d,priority=8,actions=drop", table))
	}
	b.addFlows(flows...)
	s, err := c.ReadBack(t.Context(), f)
	if err != nil || len(s.State.Flows) != 90 || len(s.Foreign) != len(f.Tables) {
		t.Errorf("%d flows, %d foreign; %v", len(s.State.Flows), len(s.Foreign), err)
	}
	f.Tables = nil
	s, err = c.ReadBack(t.Context(), f)
	if err != nil || len(s.State.Flows) != 90 || len(s.Foreign) != 0 {
		t.Errorf("without tables: %d flows, %d foreign; %v", len(s.State.Flows), len(s.Foreign), err)
	}
}

// TestXids has the transaction ids wrap.
func TestXids(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{})
	c.mu.Lock()
	c.nextXid = 0xffffffff - 300
	c.mu.Unlock()
	want := bigState(50)
	for range 3 {
		mustCommit(t, c, flow.Diff(flow.NewState(), want))
		wantSame(t, mustRead(t, c).State, want)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nextXid > 10000 || len(c.calls) != 0 {
		t.Errorf("next is %#x, %d calls are open", c.nextXid, len(c.calls))
	}
}

func TestTracer(t *testing.T) {
	t.Setenv("NKP_DEBUG", "")
	if tr := newTracer(Target{}); tr.w != nil {
		t.Error("traces unasked")
	}
	t.Setenv("NKP_DEBUG", "other,openflow-hex")
	tr := newTracer(Target{Network: "unix", Address: "/x"})
	if tr.w == nil || !tr.hex {
		t.Error("does not trace")
	}
	var out bytes.Buffer
	tr.w = &out
	b := message(typeBarrierRequest, 5)
	b = append(b, message(typeError, 6, 0, 5, 0, 1)...)
	tr.stream(">", append(b, 6, 0, 0))
	for _, want := range []string{"unix:/x > BARRIER_REQUEST xid=0x5 len=8", "ERROR OFPFMFC_TABLE_FULL xid=0x6", "0614000800000005"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	f := fl(1, 5, tcpTo("10.0.0.1", 80), flow.Output{Port: 1})
	refused := Rejection{Op: OpSet, Object: f, Cause: &SwitchError{Type: 5, Code: 1}}
	one := &TxError{Stage: StageBundle, Rejected: []Rejection{refused}}
	many := &TxError{Stage: StageBundle, Rejected: []Rejection{refused, refused}, More: 3}
	after := &TxError{Stage: StageAfter, Cause: ErrSilent}
	for got, want := range map[string]string{
		one.Error():                   "nothing installed: set flow " + f.String() + ": OFPFMFC_TABLE_FULL",
		many.Error():                  "nothing installed: 5 objects refused, first: set flow " + f.String() + ": OFPFMFC_TABLE_FULL",
		after.Error():                 "installed, but afterwards: switch is silent",
		reason(0xffff, 43, vendorNX):  "NXBMC_CT_DATAPATH_SUPPORT",
		reason(0xffff, 999, vendorNX): "Open vSwitch error 999",
		reason(0xffff, 1, 0x4f4e4600): "experimenter 0x4f4e4600 error 1",
		reason(99, 3, 0):              "error type 99 code 3",
		reason(1, 18, 0):              "OFPBRC_UNKNOWN",
		reason(17, 13, 0):             "OFPBFC_MSG_FAILED",
		reason(12, 1, 0):              "OFPMMFC_METER_EXISTS",
		reason(0, 0, 0):               "OFPHFC_INCOMPATIBLE",
		reason(0, 1, 0):               "OFPHFC_EPERM",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !errors.Is(after, ErrSilent) || !after.Installed() || one.Installed() {
		t.Error("errors.Is or Installed")
	}
}

// What flow.Match cannot express of a field is kept as unknown, so that the flow compares unequal to all that can be wanted: a value
// that stands for "any" there, a mask of a field that has none, a mask with gaps.
func TestUnknownMatchFields(t *testing.T) {
	wide := make([]byte, 16)
	for name, field := range map[string][]byte{
		"in_port 0":              oxmBytes(oxmInPort, 0, 0, 0, 0),
		"eth_dst 0":              oxmBytes(oxmEthDst, 0, 0, 0, 0, 0, 0),
		"eth_dst with a mask":    oxmBytes(masked(oxmEthDst), 2, 0, 0, 0, 0, 1, 255, 0, 0, 0, 0, 0),
		"eth_type 0":             oxmBytes(oxmEthType, 0, 0),
		"ip_proto 0":             oxmBytes(oxmIPProto, 0),
		"tcp_dst 0":              oxmBytes(oxmTCPDst, 0, 0),
		"tcp_dst with a mask":    oxmBytes(masked(oxmTCPDst), 0, 80, 0, 255),
		"icmpv6_type 0":          oxmBytes(oxmICMPv6Type, 0),
		"tcp_flags, no bit":      oxmBytes(masked(oxmTCPFlags), 0, 0, 0, 0),
		"ipv4_src, mask of gaps": oxmBytes(masked(oxmIPv4Src), 10, 0, 0, 0, 255, 0, 255, 0),
		"ipv4_dst, mask of gaps": oxmBytes(masked(oxmIPv4Dst), 10, 0, 0, 0, 255, 255, 253, 0),
		"ipv6_dst, mask of gaps": oxmBytes(masked(oxmIPv6Dst), append(wide, append([]byte{255, 127}, make([]byte, 14)...)...)...),
		"eth_src":                oxmBytes(oxmEthSrc, 2, 0, 0, 0, 0, 1),
	} {
		b := append([]byte{0, 1, 0, byte(4 + len(field))}, field...)
		b = append(b, make([]byte, (8-len(b)%8)%8)...)
		m, n, err := decodeMatch(b)
		if err != nil || n != len(b) || !strings.HasPrefix(m.Unknown, unknownPrefix) {
			t.Errorf("%s: unknown is %q, %v", name, m.Unknown, err)
		}
	}
	// Open vSwitch reports two registers as one field, the first in its upper half; a half without mask says nothing of its register.
	pair := func(value, mask uint64) flow.Match {
		field := oxmBytes(masked(oxmPktReg1), binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, value), mask)...)
		m, _, err := decodeMatch(append(append([]byte{0, 1, 0, byte(4 + len(field))}, field...), make([]byte, (8-(4+len(field))%8)%8)...))
		must(t, err)
		return m
	}
	for _, tc := range []struct {
		value, mask uint64
		want        flow.Match
	}{
		{7<<32 | 9, 0xff<<32 | 0xffff, flow.Match{Reg: [4]flow.Bits{2: bit(7, 0xff), 3: bit(9, 0xffff)}}},
		{7 << 32, 0xff << 32, flow.Match{Reg: [4]flow.Bits{2: bit(7, 0xff)}}},
		{9, 0xffff, flow.Match{Reg: [4]flow.Bits{3: bit(9, 0xffff)}}},
	} {
		if got := pair(tc.value, tc.mask); got != tc.want {
			t.Errorf("xreg1=%#x/%#x: %v, want %v", tc.value, tc.mask, got, tc.want)
		}
	}
}

// oxmBytes makes a match field of a header and its value.
func oxmBytes(header uint32, value ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, header), value...)
}

// What a refused bundle says: each object once, in the order of the bundle, with the first error about it; what the errors about
// the bundle itself say only if no object is named, or if it is more than that one was refused.
func TestRefusal(t *testing.T) {
	first, second := fl(1, 1, flow.Match{}), fl(1, 2, flow.Match{})
	group := &flow.Group{ID: groupLo}
	of := func(typ, code uint16) *SwitchError { return &SwitchError{Type: typ, Code: code} }
	bad, worse := of(errBadRequest, 1), of(errBadRequest, 2)
	failed, timeout, other := of(errBundle, codeMsgFailed), of(errBundle, codeBundleTimeout), of(errBundle, 1)
	items := []item{{group, true, 0}, {group, true, 1}, {first, true, 0}, {second, true, 0}} // by index 1 to 4
	for _, tc := range []struct {
		name     string
		errs     []indexed
		rejected []Rejection
		cause    error
	}{
		{"out of order", []indexed{{4, worse}, {3, bad}}, []Rejection{{OpSet, first, bad}, {OpSet, second, worse}}, nil},
		{"two of one message", []indexed{{3, bad}, {3, worse}}, []Rejection{{OpSet, first, bad}}, nil},
		{"two parts of a group", []indexed{{1, bad}, {2, worse}, {4, bad}}, []Rejection{{OpSet, group, bad}, {OpSet, second, bad}}, nil},
		{"an object and that one failed", []indexed{{3, bad}, {6, failed}}, []Rejection{{OpSet, first, bad}}, nil},
		{"an object and another error", []indexed{{3, bad}, {6, other}}, []Rejection{{OpSet, first, bad}}, other},
		{"the bundle alone", []indexed{{6, failed}, {5, other}}, nil, other},
		{"a timeout, whatever message it came for", []indexed{{3, timeout}}, nil, timeout},
	} {
		b := &bundle{items: items, errs: tc.errs, more: 5}
		var tx *TxError
		if err := b.refusal(StageBundle, nil); !errors.As(err, &tx) || tx.Stage != StageBundle || tx.More != 5 {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if !slices.Equal(tx.Rejected, tc.rejected) || tx.Cause != tc.cause {
			t.Errorf("%s: rejected %v, cause %v; want %v, %v", tc.name, tx.Rejected, tx.Cause, tc.rejected, tc.cause)
		}
	}
	if b, cut := (&bundle{d: &flow.Delta{}}), errors.New("cut"); b.refusal(StageBundle, cut) != cut {
		t.Error("what kept a bundle from being sent is not the error")
	}
}

// Of a switch's text no control characters, and no more than 200 bytes, are shown.
func TestPrintable(t *testing.T) {
	if got := printable([]byte("a\x1b[2J\n ~\x7f\x80\xff\x00b")); got != "a[2J ~b" {
		t.Errorf("%q", got)
	}
	if got := printable(bytes.Repeat([]byte("x"), 1000)); len(got) != 200 {
		t.Errorf("%d bytes", len(got))
	}
}
