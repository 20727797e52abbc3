//go:build linux

package ofctrl

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

var update = flag.Bool("update", false, "capture testdata/frames from a real switch again")

// seedFrames are messages that Open vSwitch sent.
func seedFrames(t testing.TB) []frame {
	t.Helper()
	names, err := filepath.Glob("testdata/frames/*")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d frames in testdata/frames; %v", len(names), err)
	}
	var out []frame
	for _, n := range names {
		b, err := os.ReadFile(n)
		must(t, err)
		out = append(out, b)
	}
	return out
}

// The kinds of frames in testdata/frames are those that a switch sends. With -update they are written: one frame for each type and, of
// multipart replies, some sizes.
func TestCapture(t *testing.T) {
	b := newBridge(t)
	b.dial(Options{}).Close()
	var mu sync.Mutex
	var stream bytes.Buffer
	target := listenFake(t, func(f *ofctrltest.Session) {
		up, err := net.Dial("unix", b.target().Address)
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		go io.Copy(up, f.Conn)
		buf := make([]byte, 1<<16)
		for {
			n, err := up.Read(buf)
			mu.Lock()
			stream.Write(buf[:n])
			mu.Unlock()
			if _, werr := f.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	c := dialFake(t, target, Options{EchoInterval: 50 * time.Millisecond, OnPacketIn: func(*PacketIn) {}})
	s := allShapes(t)
	delete(s.Groups, groupLo+10)
	delete(s.Groups, groupLo+11)
	mustCommit(t, c, flow.Diff(flow.NewState(), s))
	mustRead(t, c)
	c.FlowCount(t.Context(), 0, 0)
	c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{fl(1, 1, flow.Match{}, flow.DecTTL{})}})
	c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{fl(1, 1, flow.Match{}, flow.ToGroup{ID: 99})}})
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{fl(0, 65000, flow.Match{}, flow.SetField{Field: flow.Reg1, Value: 5, Mask: 0xffffffff}, flow.ToController{MaxLen: 0xffff})}})
	c.PacketOut(t.Context(), flow.PortLocal, udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x"), flow.Output{Port: portTable})
	b.ofctl("add-meter", "meter=9,pktps,band=type=drop,rate=7")
	b.ofctl("add-group", "group_id=7,type=all,bucket=output:1")
	kinds := func() map[string]frame {
		mu.Lock()
		defer mu.Unlock()
		return kindsOf(stream.Bytes())
	}
	wait.NoError(t, "the messages that nobody waits for", func() error {
		seen := kinds()
		for _, typ := range []msgType{typeEchoReply, typePacketIn} {
			if seen[typ.String()] == nil {
				return fmt.Errorf("no %v", typ)
			}
		}
		for _, about := range []msgType{typeMeterMod, typeGroupMod} {
			if seen[fmt.Sprintf("%v-%v", typeRequestForward, about)] == nil {
				return fmt.Errorf("no %v about a %v", typeRequestForward, about)
			}
		}
		return nil
	})
	seen := kinds()
	if *update {
		for name, f := range seen {
			must(t, os.WriteFile(filepath.Join("testdata/frames", name), f, 0o644))
		}
	}
	names, err := filepath.Glob("testdata/frames/*")
	must(t, err)
	want := map[string]bool{}
	for _, n := range names {
		want[withoutSize(filepath.Base(n))] = true
	}
	got := map[string]bool{}
	for n := range seen {
		got[withoutSize(n)] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("the switch sends %v, testdata/frames has %v: run with -update", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// kindsOf returns the first message of each kind in a stream: of each type, of errors by their numbers, of
// multipart replies by type and size.
func kindsOf(stream []byte) map[string]frame {
	seen := map[string]frame{}
	for fr := newFrameReader(bytes.NewReader(stream)); ; {
		f, err := fr.next()
		if err != nil {
			return seen
		}
		name := f.typ().String()
		switch f.typ() {
		case typeMultipartReply:
			name = fmt.Sprintf("%s-%d-%d", name, u16(f.body()), len(f))
		case typeError:
			name = fmt.Sprintf("%s-%d-%d", name, u16(f.body()), u16(f.body()[2:]))
		case typeRequestForward:
			name = fmt.Sprintf("%s-%v", name, frame(f.body()).typ())
		}
		if seen[name] == nil {
			seen[name] = bytes.Clone(f)
		}
	}
}

// withoutSize returns the name of a kind without the size of a multipart reply.
func withoutSize(kind string) string {
	if strings.HasPrefix(kind, typeMultipartReply.String()) {
		kind = kind[:strings.LastIndex(kind, "-")]
	}
	return kind
}

func FuzzFrames(f *testing.F) {
	var all []byte
	for _, m := range seedFrames(f) {
		f.Add([]byte(m))
		all = append(all, m...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for fr := newFrameReader(bytes.NewReader(b)); ; {
			m, err := fr.next()
			if err != nil {
				if !errors.Is(err, ErrProtocol) && err != io.EOF && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				return
			}
			if total += len(m); len(m) < headerLen || len(m) != int(u16(m[2:])) || total > len(b) {
				t.Fatalf("frame of %d bytes", len(m))
			}
			parseError(m)
			helloVersions(m)
		}
	})
}

// FuzzDispatch hands a message to a connection on which a batch, a bundle and questions are open.
func FuzzDispatch(f *testing.F) {
	for _, m := range seedFrames(f) {
		for xid := range byte(12) {
			m[4], m[5], m[6], m[7] = 0, 0, 0, xid
			f.Add(bytes.Clone(m))
		}
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) < headerLen || len(m) > maxMessage {
			return
		}
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		c := newConn(a, Target{}, Options{OnPacketIn: func(*PacketIn) {}, OnForward: func() {}}.withDefaults())
		c.register(2, &batch{n: 1, errs: map[int]*SwitchError{}, done: make(chan struct{})})
		d := &flow.Delta{SetFlows: []*flow.Flow{fl(1, 1, flow.Match{})}}
		bu := &bundle{c: c, d: d, replies: make(chan uint16, 8), id: 1}
		bu.plan()
		c.register(len(bu.items)+4, bu)
		r := &reading{filter: ownFilter, dec: newDecoder(), to: &Snapshot{State: flow.NewState()}, foreign: &c.foreign}
		for _, q := range []struct {
			typ  uint16
			each func([]byte) error
		}{
			{mpFlowDesc, r.flowReply}, {mpFlowDesc, func(b []byte) error {
				return r.each(b, func(fd flowDesc) { r.foreign.addRead(fd.flow, r.filter.Keep) })
			}},
			{mpGroupDesc, func(b []byte) error {
				return records(b, "", groupDescLen, 0, func(b []byte) error { _, err := r.dec.groupDesc(b); return err })
			}},
			{mpMeterDesc, func(b []byte) error {
				return records(b, "", meterDescLen, 0, func(b []byte) error { meterDesc(b); return nil })
			}},
			{mpGroupStats, func(b []byte) error {
				return records(b, "", groupStatsLen, 0, func(b []byte) error { groupCounters(b); return nil })
			}},
			{mpAggregate, func(b []byte) error { _, _, _, err := flowStats(b); return err }},
		} {
			qu := &question{typ: q.typ, left: 1, done: make(chan struct{}), each: q.each}
			c.register(1, qu)
			defer func() {
				if qu.err != nil && strings.Contains(qu.err.Error(), "cannot be decoded") {
					t.Error(qu.err) // it panicked
				}
			}()
		}
		if err := c.dispatch(m); err != nil && strings.Contains(err.Error(), "cannot be decoded") {
			t.Error(err)
		}
		bu.refusal(StageBundle, nil)
	})
}

// FuzzMatch decodes a match; what decodes without unknown fields must encode and decode to the same, if the
// encoder takes it at all.
func FuzzMatch(f *testing.F) {
	for _, m := range matchShapes() {
		b, err := match(nil, &m, false)
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := decodeMatch(b)
		if err != nil {
			return
		}
		if n > len(b) {
			t.Fatalf("%d of %d bytes", n, len(b))
		}
		again, err := match(nil, &m, true)
		if err != nil {
			return
		}
		if got, _, err := decodeMatch(again); err != nil || m.Unknown == "" && got != m {
			t.Fatalf("%v, then %v; %v", m, got, err)
		}
	})
}

// FuzzActions is FuzzMatch for lists of actions.
func FuzzActions(f *testing.F) {
	e := newEncoder()
	for _, v6 := range []bool{false, true} {
		for _, as := range actionShapes(v6) {
			b, err := e.actions(nil, as)
			must(f, err)
			f.Add(b, v6)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		d := newDecoder()
		d.v6 = v6
		as, err := d.actions(nil, b)
		if err != nil {
			return
		}
		again, err := newEncoder().actions(nil, as)
		if err != nil {
			return
		}
		got, err := d.actions(nil, again)
		if err != nil || len(got) != len(as) {
			t.Fatalf("%v, then %v; %v", as, got, err)
		}
		for i := range got {
			if got[i] != as[i] {
				t.Errorf("%v, then %v", as[i], got[i])
			}
		}
	})
}
