package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// FuzzSession is a server whose schema, rows and later messages are anything. Nothing may panic, and every error is one
// short line.
func FuzzSession(f *testing.F) {
	schema, rows := []byte(fakeSchema), []byte(fakeRows)
	update := func(rows string) []byte {
		return fmt.Appendf(nil, `{"id":null,"method":"update2","params":["nkp",%s]}`, rows)
	}
	f.Add(schema, rows, update(`{"Interface":{"00000000-0000-0000-0000-00000000000d":{"modify":{"ofport":12}}}}`))
	f.Add(schema, rows, update(`{"Port":{"00000000-0000-0000-0000-00000000000c":{"delete":null}}}`))
	f.Add(schema, rows, update(`{"Port":{"00000000-0000-0000-0000-00000000000c":{"modify":{"trunks":["set",[1,3]],"external_ids":["map",[["a","b"]]]}}}}`))
	f.Add(schema, rows, []byte(`{"id":"e","method":"echo","params":[]}{"id":7,"result":null,"error":"no"}`))
	f.Add(schema, []byte(`{"Port":{"x":{"insert":{"name":[]}}}}`), []byte(`{"result":{}}`))
	f.Add([]byte(`{"name":"Open_vSwitch","tables":{"Port":{"columns":{"name":{"type":{"key":{"type":"string","enum":["set"]}}}}}}}`), rows, []byte(`[]`))
	f.Fuzz(func(t *testing.T, schema, rows, then []byte) {
		synctest.Test(t, func(t *testing.T) { hostileSession(t, schema, rows, then) })
	})
}

// hostileSession has a server say three texts to a new session.
func hostileSession(t *testing.T, schema, rows, then []byte) {
	near, far := net.Pipe()
	defer far.Close()
	go func() { // ends with the pipe
		in := json.NewDecoder(far)
		for i, result := range [][]byte{schema, rows} {
			var ask map[string]any
			if in.Decode(&ask) != nil {
				return
			}
			fmt.Fprintf(far, `{"id":%d,"result":%s,"error":null}`, i+1, result)
		}
		go func() { // what the client says to that
			var any json.RawMessage
			for in.Decode(&any) == nil {
			}
		}()
		far.Write(then)
		far.Close()
	}()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := newSession(near, time.Second)
	started := s.start(ctx)
	if started == nil {
		buildSwitch("br-int", s.list())
	}
	select {
	case <-s.lost:
	case <-ctx.Done(): // it waits for the rest of a reply
		s.close()
	}
	if started == nil {
		buildSwitch("br-int", s.list())
	}
	for _, err := range []error{started, s.err} {
		if err != nil && (len(err.Error()) > 1500 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' })) {
			t.Errorf("%d bytes: %.300q", len(err.Error()), err)
		}
	}
}
