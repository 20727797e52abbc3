package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/test/wait"
)

// A server that answers nonsense where a client begins: the error says so in one short line. Some of these ended the process,
// in the library's goroutines.
func TestMalformedServer(t *testing.T) {
	t.Parallel()
	const noReply = "does not answer"
	schema := func(old, new string) fakeServer { return fakeServer{schema: replaced(t, fakeSchema, old, new)} }
	rows := func(old, new string) fakeServer { return fakeServer{rows: replaced(t, fakeRows, old, new)} }
	for name, tc := range map[string]struct {
		server fakeServer
		want   string
	}{
		"reply without a number":        {fakeServer{instead: map[string]string{"get_schema": `{"result":{},"error":null}`}}, "not OVSDB"},
		"reply with the number null":    {fakeServer{instead: map[string]string{"get_schema": `{"id":null,"result":{}}`}}, "not OVSDB"},
		"reply with an odd number":      {fakeServer{instead: map[string]string{"get_schema": `{"id":"1","result":{}}`}}, "not OVSDB"},
		"reply of nothing":              {fakeServer{instead: map[string]string{"get_schema": `{}`}}, "not OVSDB"},
		"reply that is null":            {fakeServer{instead: map[string]string{"get_schema": `null`}}, noReply},
		"reply that is a list":          {fakeServer{instead: map[string]string{"get_schema": `[]`}}, "not OVSDB"},
		"an odd error":                  {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"result":null,"error":{"a":7}}`}}, "not OVSDB"},
		"a long error":                  {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"result":null,"error":"` + strings.Repeat(`x\n`, 100_000) + `"}`}}, "refuses get_schema"},
		"another's number":              {fakeServer{instead: map[string]string{"get_schema": `{"id":77,"result":{},"error":null}`}}, noReply},
		"nothing but questions":         {fakeServer{instead: map[string]string{"get_schema": strings.Repeat(`{"id":"e","method":"echo","params":[]}`, 100)}}, noReply},
		"a question of no known method": {fakeServer{instead: map[string]string{"get_schema": `{"id":7,"method":"shutdown","params":[]}`}}, noReply},
		"a notification of none":        {fakeServer{instead: map[string]string{"get_schema": `{"id":null,"method":"locked","params":["x"]}`}}, ""},
		"cut off":                       {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"resu`}}, noReply},
		"silence":                       {fakeServer{instead: map[string]string{"list_dbs": "", "get_schema": ""}}, noReply},
		"another protocol":              {fakeServer{instead: map[string]string{"get_schema": "HTTP/1.0 200 OK\r\n\r\n"}}, "not OVSDB"},
		"goodbye":                       {fakeServer{hangsUp: true}, "connection lost"},
		"deep":                          {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"result":` + strings.Repeat(`[`, 1_000_000)}}, "not OVSDB"},

		"schema null":          {fakeServer{schema: `null`}, ""},
		"schema empty":         {fakeServer{schema: `{}`}, "does not fit"},
		"schema a list":        {fakeServer{schema: `[]`}, "not OVSDB"},
		"another database":     {schema(`"name":"Open_vSwitch"`, `"name":"OVN_Southbound"`), "does not fit"},
		"no table Port":        {schema(`"Port":{`, `"Harbour":{`), "does not fit"},
		"no column tag":        {schema(`"tag":{`, `"label":{`), "does not fit"},
		"column null":          {schema(`"name":{"type":"string","mutable":false}`, `"name":null`), ""},
		"column without type":  {schema(`"name":{"type":"string","mutable":false}`, `"name":{}`), "not OVSDB"},
		"type null":            {schema(`"name":{"type":"string","mutable":false}`, `"name":{"type":null}`), "not OVSDB"},
		"type without key":     {schema(`"name":{"type":"string","mutable":false}`, `"name":{"type":{}}`), "not OVSDB"},
		"type unknown":         {schema(`"name":{"type":"string","mutable":false}`, `"name":{"type":{"key":{"type":"colour"}}}`), ""},
		"enum a short set":     {schema(`["set",["trunk","access"]]`, `["set"]`), "not OVSDB"},
		"enum an empty list":   {schema(`["set",["trunk","access"]]`, `[]`), "not OVSDB"},
		"enum of an odd set":   {schema(`["set",["trunk","access"]]`, `["set",7]`), "not OVSDB"},
		"an index of nothing":  {schema(`"indexes":[["name"]]},`, `"indexes":[["nosuch"]]},`), "not OVSDB"},
		"a key that is a real": {schema(`"ofport":{"type":{"key":"integer"`, `"ofport":{"type":{"key":"real"`), "does not fit"},

		"rows null":             {fakeServer{rows: `null`}, ""},
		"rows a list":           {fakeServer{rows: `[]`}, "not OVSDB"},
		"row null":              {rows(`{"initial":{"name":"br-int"`, `null,"x":{"initial":{"name":"br-int"`), "not OVSDB"},
		"row of nothing":        {rows(`{"initial":{"name":"pod-a","interfaces"`, `{"final":{"name":"pod-a","interfaces"`), "not OVSDB"},
		"cell an empty list":    {rows(`"tag":7`, `"tag":[]`), "not OVSDB"},
		"cell null":             {rows(`"tag":7`, `"tag":null`), "not OVSDB"},
		"cell of another type":  {rows(`"name":"br-int"`, `"name":{"a":7}`), "not OVSDB"},
		"set without elements":  {rows(`["set",[1,2]]`, `["set"]`), "not OVSDB"},
		"set of a number":       {rows(`["set",[1,2]]`, `["set",1]`), "not OVSDB"},
		"set of mixed":          {rows(`["set",[1,2]]`, `["set",[1,"x"]]`), "not OVSDB"},
		"set of sets":           {rows(`["set",[1,2]]`, `["set",[["set",[]]]]`), "not OVSDB"},
		"uuid without value":    {rows(`["uuid","`+fakeIface+`"]`, `["uuid"]`), "not OVSDB"},
		"uuid of a number":      {rows(`["uuid","`+fakeIface+`"]`, `["uuid",7]`), ""},
		"map without pairs":     {rows(`["map",[["system-id","x"]]]`, `["map"]`), ""},
		"map of a number":       {rows(`["map",[["system-id","x"]]]`, `["map",7]`), "not OVSDB"},
		"map of no pairs":       {rows(`["map",[["system-id","x"]]]`, `["map",["system-id"]]`), "not OVSDB"},
		"map of short pairs":    {rows(`["map",[["system-id","x"]]]`, `["map",[["system-id"]]]`), "not OVSDB"},
		"map of empty pairs":    {rows(`["map",[["system-id","x"]]]`, `["map",[[]]]`), "not OVSDB"},
		"map with a map as key": {rows(`["map",[["system-id","x"]]]`, `["map",[[{"a":1},"x"]]]`), "not OVSDB"},
		"a huge port number":    {rows(`"ofport":11`, `"ofport":1e300`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Endpoint: tc.server.listen(t), Bridge: "br-int", Timeout: wait.Limit}
			if tc.want == noReply || tc.want == "" {
				o.Timeout = 100 * time.Millisecond // no reply comes, or this one is taken
			}
			c, err := Connect(t.Context(), o)
			if err == nil {
				defer c.Close()
			}
			switch {
			case err == nil && tc.want != "":
				t.Errorf("connected: %+v", c.Switch())
			case err != nil && (!errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\n\r")):
				t.Errorf("%.1000q, want %q", err, tc.want)
			}
		})
	}
}

// Whoever connects to a server that says nothing waits no longer than its own context.
func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent := fakeServer{instead: map[string]string{"list_dbs": "", "get_schema": ""}}
	o := Options{Endpoint: silent.listen(t), Bridge: "br-int", Timeout: 2 * wait.Limit}
	if _, err := Connect(ctx, o); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
}

func replaced(t *testing.T, text, old, new string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("no %s to replace", old)
	}
	return strings.Replace(text, old, new, 1)
}

// A server that begins well and then sends nonsense loses its connection, and the last good state stays in
// force.
func TestMalformedUpdates(t *testing.T) {
	t.Parallel()
	update := func(rows string) string { return `{"id":null,"method":"update2","params":["nkp",` + rows + `]}` }
	for name, text := range map[string]string{
		"not JSON":             `HTTP/1.0 200 OK`,
		"no parameters":        `{"id":null,"method":"update2","params":[]}`,
		"parameters null":      `{"id":null,"method":"update2","params":null}`,
		"without parameters":   `{"id":null,"method":"update2"}`,
		"rows null, then junk": update(`null`) + `]`,
		"rows a list":          update(`[]`),
		"row null":             update(`{"Port":{"` + fakePort + `":null}}`),
		"unknown row":          update(`{"Port":{"x":{"modify":{"tag":8}}}}`),
		"deleted twice":        update(`{"Port":{"`+fakePort+`":{"delete":null}}}`) + update(`{"Port":{"`+fakePort+`":{"delete":{}}}}`) + update(`{"Port":{"`+fakePort+`":{"delete":{}}}}`),
		"an empty list":        update(`{"Port":{"` + fakePort + `":{"modify":{"tag":[]}}}}`),
		"another type":         update(`{"Port":{"` + fakePort + `":{"modify":{"tag":"x"}}}}`),
		"reply to nobody":      `{"result":7}`,
		"a reply of no number": `{"id":{},"result":7}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := fakeServer{then: says(text)}.over(t, Options{})
				time.Sleep(time.Minute) // the first probe, the text, and what comes of it
				if err := c.LastError(); !errors.Is(err, ErrUnreachable) || c.Connected() {
					t.Errorf("goes on: %v", err)
				}
				if s := c.Switch(); !s.Exists || s.FailMode != "secure" {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// However much a server sends, the client takes a bounded part of it: of a message without end, of changes
// without end, and of questions without end, whose answers the server does not read. Then it ends the
// connection. The test does not run beside others.
func TestServerFloods(t *testing.T) {
	defer func(n int) { maxTaken = n }(maxTaken)
	maxTaken = 8 << 20
	o := Options{Timeout: 5 * time.Second, ProbeInterval: 10 * time.Second}
	block := strings.Repeat("x", 1<<20)
	for _, tc := range []struct {
		name, want string
		deaf       bool
		after      time.Duration
		most       int // bytes that are taken until then
		send       func(i int) string
	}{
		{"a message without end", "more than 16 MiB", false, 2 * o.ProbeInterval, maxMessage, func(i int) string {
			if i == 0 {
				return `{"id":null,"method":"update2","params":["nkp","`
			}
			return block
		}},
		{"rows without end", "listing everything again", false, 2 * o.ProbeInterval, maxTaken + 4<<20, func(i int) string {
			return fmt.Sprintf(`{"id":null,"method":"update2","params":["nkp",{"Port":{"p%d":{"insert":{"name":"p%d","vlan_mode":"%s"}}}}]}`, i, i, block)
		}},
		{"questions without end", "not reachable", true, o.Timeout - 1, 4 << 20, func(int) string {
			return `{"id":"e","method":"echo","params":["` + block + `"]}`
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				taken := 0 // written by the server, which has ended or is blocked when it is read
				c := fakeServer{deaf: tc.deaf, then: func(conn net.Conn) {
					for i := range 40 { // a client without bounds fails the test and not the machine
						n, err := conn.Write([]byte(tc.send(i)))
						if taken += n; err != nil {
							return
						}
					}
				}}.over(t, o)
				time.Sleep(tc.after)
				synctest.Wait()
				if taken > tc.most {
					t.Errorf("%d KiB are taken, want at most %d", taken>>10, tc.most>>10)
				}
				time.Sleep(2 * o.ProbeInterval)
				if err := c.LastError(); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if !c.Switch().Exists {
					t.Error("the last good state is gone")
				}
			})
		})
	}
}
