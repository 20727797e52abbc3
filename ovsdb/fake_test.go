package ovsdb

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeSchema is what nkp needs of vswitch.ovsschema, fakeRows a bridge with a port in the form of monitor_cond's reply.
//
//go:embed testdata/schema.json
var fakeSchema string

//go:embed testdata/rows.json
var fakeRows string

// The rows of fakeRows.
const (
	fakePort  = "00000000-0000-0000-0000-00000000000c"
	fakeIface = "00000000-0000-0000-0000-00000000000d"
)

// fakeServer is a database server that says what a test wants: schema and rows when it is asked for them, and
// whatever `then` writes once the client has these. Echoes it answers.
type fakeServer struct {
	schema, rows string // results; "" means fakeSchema and fakeRows
	// instead, if set, is sent in place of the reply to a method; "" sends nothing.
	instead map[string]string
	then    func(net.Conn) // called after the first echo, which a client asks for when it has the rows
	deaf    bool           // calls then with the rows, and reads nothing from then on
	hangsUp bool           // at once
}

// over returns a client of the server that has no socket, for a test in a bubble. When it has lost its
// connection it does not get another: the first attempt is an hour later.
func (f fakeServer) over(t *testing.T, o Options) *Client {
	t.Helper()
	o.Endpoint, o.Bridge, o.MinBackoff = "unix:/nonexistent/db.sock", "br-int", time.Hour
	o.setDefaults()
	near, far := net.Pipe()
	go func() { // ends with the connection
		defer far.Close()
		f.serve(far)
	}()

	s := newSession(near, o.Timeout)
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	life, cancel := context.WithCancel(context.Background())
	c := &Client{
		opt: o, changed: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}), published: make(chan struct{}),
		sw: buildSwitch(o.Bridge, s.list()), session: s,
	}
	go c.run(life, s) // ended by Close
	t.Cleanup(c.Close)
	return c
}

// listen returns the server's endpoint. It ends with the test.
func (f fakeServer) listen(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer c.Close()
				f.serve(c)
			}()
		}
	}()
	return "unix:" + path
}

func (f fakeServer) serve(c net.Conn) {
	if f.hangsUp {
		return
	}
	results := map[string]string{"list_dbs": `["Open_vSwitch"]`, "get_schema": f.schema, "echo": `["libovsdb echo"]`, "transact": `[]`}
	if f.schema == "" {
		results["get_schema"] = fakeSchema
	}
	rows := f.rows
	if rows == "" {
		rows = fakeRows
	}
	results["monitor_cond"], results["monitor_cond_since"] = rows, `[false,"x",`+rows+`]`
	then := f.then
	for in := json.NewDecoder(c); ; {
		var ask struct {
			ID     json.RawMessage
			Method string
		}
		if in.Decode(&ask) != nil {
			return
		}
		if ask.Method == "" {
			continue // an answer
		}
		reply, ok := f.instead[strings.TrimSuffix(ask.Method, "_since")]
		if !ok {
			reply = fmt.Sprintf(`{"id":%s,"result":%s,"error":null}`, ask.ID, results[ask.Method])
		}
		if reply == "" {
			continue
		}
		if _, err := c.Write([]byte(reply)); err != nil {
			return
		}
		switch {
		case f.deaf && strings.HasPrefix(ask.Method, "monitor"):
			f.then(c)
			return
		case ask.Method == "echo" && then != nil:
			go then(c) // ends with the connection
			then = nil
		}
	}
}

// says writes one text.
func says(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = c.Write([]byte(text)) }
}
