package ovsdb_test

import (
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

// fakeServer is a database server that says what a test wants: schema and rows when it is asked for them, then whatever
// `then` writes. Echoes it answers.
type fakeServer struct {
	schema, rows string // results; "" means fakeSchema and fakeRows
	// instead, if set, is sent in place of the reply to a method.
	instead map[string]string
	then    func(net.Conn)
	deaf    bool // reads nothing once it has given the rows
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
	results := map[string]string{"list_dbs": `["Open_vSwitch"]`, "get_schema": f.schema, "echo": `["libovsdb echo"]`, "transact": `[]`}
	if f.schema == "" {
		results["get_schema"] = fakeSchema
	}
	rows := f.rows
	if rows == "" {
		rows = fakeRows
	}
	results["monitor_cond"], results["monitor_cond_since"] = rows, `[false,"x",`+rows+`]`
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
		if _, err := c.Write([]byte(reply)); err != nil {
			return
		}
		if strings.HasPrefix(ask.Method, "monitor") && f.then != nil {
			if f.deaf {
				f.then(c)
				return
			}
			go func() { // ends with the connection
				time.Sleep(100 * time.Millisecond) // the client has the first state
				f.then(c)
			}()
		}
	}
}

// says writes one text.
func says(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = c.Write([]byte(text)) }
}
