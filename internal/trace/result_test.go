package trace

import (
	"bytes"
	"strings"
	"testing"
)

// The JSON form is a contract: names, order and empty lists.
func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	if err := ask(t, load(t), "10.0.0.5", "8.8.8.8:53").WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	want := `{
  "verdict": "untouched",
  "service": "",
  "frontend": "",
  "endpoints": [],
  "masquerade": "never",
  "steps": [
    "from 10.0.0.5: a pod of this node (pod range 10.0.0.0/16)",
    "to 8.8.8.8:53/TCP: no Service has this address",
    "left alone: it goes on as any other packet, without nkp"
  ],
  "packet": {
    "from": "10.0.0.5",
    "to": "8.8.8.8:53",
    "protocol": "TCP"
  }
}
`
	if b.String() != want {
		t.Errorf("got %s\nwant %s", b.String(), want)
	}
}

func TestWriteText(t *testing.T) {
	r := ask(t, load(t), "10.0.0.5", "40.0.0.9:80")
	r.Live = NewLive()
	r.Live.Step("table %d", 1)
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "\nverdict: deliver\nwhat is installed agrees\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
	r.Live.Differ("the switch says %s", Drop)
	b.Reset()
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "\nwhat is installed does not agree: the switch says drop\n") || strings.Contains(b.String(), "agrees") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]string{
		"10.0.0.5": "10.0.0.5:0", "10.0.0.5:40": "10.0.0.5:40", "fd00::5": "[fd00::5]:0", "[fd00::5]": "[fd00::5]:0",
		"[fd00::5]:40": "[fd00::5]:40", "::ffff:10.0.0.5": "10.0.0.5:0", "": "", "x": "", "10.0.0.5:x": "", "10.0.0.5:70000": "",
		"0.0.0.0": "", "fe80::1%eth0": "", "[fe80::1%eth0]:80": "", "10.0.0.0/8": "",
	} {
		got, err := ParseSource(s)
		if want == "" && err == nil || want != "" && (err != nil || got.String() != want) {
			t.Errorf("source %q: %s, %v; want %q", s, got, err, want)
		}
	}
	for s, ok := range map[string]bool{"10.0.0.5:80": true, "[fd00::5]:80": true, "10.0.0.5": false, "10.0.0.5:0": false, "fd00::5:80": false, "[::]:80": false, "web:80": false} {
		if _, err := ParseDestination(s); (err == nil) != ok {
			t.Errorf("destination %q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"": true, "tcp": true, "UDP": true, "Sctp": true, "icmp": false} {
		if _, err := ParseProtocol(s); (err == nil) != ok {
			t.Errorf("protocol %q: %v", s, err)
		}
	}
}
