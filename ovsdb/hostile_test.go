package ovsdb_test

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/ovsdb"
)

// connectTo connects to a fake server. The timeout is a second, or the one given.
func connectTo(t *testing.T, f fakeServer, timeout ...time.Duration) (*ovsdb.Client, error) {
	t.Helper()
	c, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: f.listen(t), Bridge: "br-int", Timeout: append(timeout, time.Second)[0],
		ProbeInterval: 50 * time.Millisecond, MinBackoff: 50 * time.Millisecond, MaxBackoff: 100 * time.Millisecond})
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

// The fake server is believed when it tells the truth.
func TestFakeServer(t *testing.T) {
	t.Parallel()
	update := `{"id":null,"method":"update2","params":["nkp",{"Interface":{"` + fakeIface + `":{"modify":{"ofport":12}}}}]}`
	c, err := connectTo(t, fakeServer{then: says(update)})
	if err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		s := c.Switch()
		p, ok := s.PortByNumber(12)
		if ok && p.Name == "pod-a" && p.Tag == 7 && len(p.Trunks) == 2 && len(p.IPs) == 1 && s.FailMode == "secure" {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("%+v", s)
		}
	}
	time.Sleep(200 * time.Millisecond) // some echoes
	if !c.Connected() {
		t.Error(c.LastError())
	}
}

// A server that answers nonsense where a client begins: the error says so in one short line. Some of these ended the process,
// in the library's goroutines.
func TestMalformedServer(t *testing.T) {
	t.Parallel()
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
		"reply that is null":            {fakeServer{instead: map[string]string{"get_schema": `null`}}, "does not answer"},
		"reply that is a list":          {fakeServer{instead: map[string]string{"get_schema": `[]`}}, "not OVSDB"},
		"an odd error":                  {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"result":null,"error":{"a":7}}`}}, "not OVSDB"},
		"a long error":                  {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"result":null,"error":"` + strings.Repeat(`x\n`, 100_000) + `"}`}}, "refuses get_schema"},
		"another's number":              {fakeServer{instead: map[string]string{"get_schema": `{"id":77,"result":{},"error":null}`}}, "does not answer"},
		"nothing but questions":         {fakeServer{instead: map[string]string{"get_schema": strings.Repeat(`{"id":"e","method":"echo","params":[]}`, 100)}}, "does not answer"},
		"a question of no known method": {fakeServer{instead: map[string]string{"get_schema": `{"id":7,"method":"shutdown","params":[]}`}}, "does not answer"},
		"a notification of none":        {fakeServer{instead: map[string]string{"get_schema": `{"id":null,"method":"locked","params":["x"]}`}}, ""},
		"cut off":                       {fakeServer{instead: map[string]string{"get_schema": `{"id":1,"resu`}}, "does not answer"},
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
			begin := time.Now()
			c, err := connectTo(t, tc.server)
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("told after %v", took)
			}
			switch {
			case err == nil && tc.want != "":
				t.Errorf("connected: %+v", c.Switch())
			case err != nil && (!errors.Is(err, ovsdb.ErrUnreachable) || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\n\r")):
				t.Errorf("%.1000q, want %q", err, tc.want)
			}
		})
	}
}

func replaced(t *testing.T, text, old, new string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("no %s to replace", old)
	}
	return strings.Replace(text, old, new, 1)
}

// A server that begins well and then sends nonsense loses its connection, and the last good state stays in force; one that tells
// the truth again is listened to.
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
			t.Parallel()
			c, err := connectTo(t, fakeServer{then: says(text)})
			if err != nil {
				t.Fatal(err)
			}
			ended := func() bool { return errors.Is(c.LastError(), ovsdb.ErrUnreachable) }
			for late := time.Now().Add(5 * time.Second); !ended(); time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatalf("goes on: %+v", c.Switch())
				}
			}
			if s := c.Switch(); !s.Exists || s.FailMode != "secure" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// However much a server sends, memory is bounded: a message without end, changes without end, questions without end.
// It does not run beside other tests.
func TestServerFloods(t *testing.T) {
	defer ovsdb.SetMaxTaken(8 << 20)()
	block := strings.Repeat("x", 1<<20)
	const enough = 300 // blocks: a client without bounds fails the test and not the machine
	for _, tc := range []struct {
		name, want string
		deaf       bool
		then       func(net.Conn)
	}{
		{"a message without end", "more than 16 MiB", false, func(c net.Conn) {
			_, err := c.Write([]byte(`{"id":null,"method":"update2","params":["nkp","`))
			for i := 0; i < enough && err == nil; i++ {
				_, err = c.Write([]byte(block))
			}
		}},
		{"rows without end", "listing everything again", false, func(c net.Conn) {
			var err error
			for i := 0; i < enough && err == nil; i++ {
				_, err = fmt.Fprintf(c, `{"id":null,"method":"update2","params":["nkp",{"Port":{"p%d":{"insert":{"name":"p%d","vlan_mode":"%s"}}}}]}`, i, i, block)
			}
		}},
		{"questions without end", "not reachable", true, func(c net.Conn) {
			var err error
			for i := 0; i < enough && err == nil; i++ { // and nobody reads the answers
				_, err = c.Write([]byte(`{"id":"e","method":"echo","params":["` + block + `"]}`))
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			f := fakeServer{then: tc.then, deaf: tc.deaf}
			c, err := connectTo(t, f, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			most, said := uint64(0), ""
			for late := time.Now().Add(20 * time.Second); !strings.Contains(said, tc.want); time.Sleep(5 * time.Millisecond) {
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
				if err := c.LastError(); err != nil {
					said = err.Error()
				}
				if time.Now().After(late) {
					t.Fatalf("no error says %q: %s", tc.want, said)
				}
			}
			if grown := int64(most) - int64(before.HeapAlloc); grown > 400<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			} else {
				t.Logf("the heap grew by %d MiB", grown>>20)
			}
			if !c.Switch().Exists {
				t.Error("the last good state is gone")
			}
		})
	}
}
