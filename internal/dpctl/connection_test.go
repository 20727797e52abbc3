package dpctl

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const dump = `tcp,orig=(src=10.0.0.12,dst=40.0.0.2,sport=40356,dport=80),reply=(src=10.0.1.11,dst=10.0.0.12,sport=8080,dport=40356),zone=1001,mark=733277697,protoinfo=(state=TIME_WAIT)
udp,orig=(src=fd00:a::12,dst=fd00:40::1,sport=5,dport=53),reply=(src=fd00:a::11,dst=fd00:a::12,sport=5353,dport=5),zone=1001,mark=0x101
icmp,orig=(src=10.0.0.12,dst=10.0.1.11,id=5,type=8,code=0),reply=(src=10.0.1.11,dst=10.0.0.12,id=5,type=0,code=0),zone=1001
tcp,orig=(src=10.0.0.12
`

// parse reads a whole answer.
func parse(text string) (list []Connection) {
	for line := range strings.Lines(text) {
		if c, ok := parseConnection(strings.TrimSpace(line)); ok {
			list = append(list, c)
		}
	}
	return list
}

func TestParse(t *testing.T) {
	at := netip.MustParseAddrPort
	want := []Connection{
		{Protocol: "TCP", Client: at("10.0.0.12:40356"), Frontend: at("40.0.0.2:80"), Endpoint: at("10.0.1.11:8080"),
			Seen: netip.MustParseAddr("10.0.0.12"), Zone: 1001, Mark: 733277697, State: "TIME_WAIT"},
		{Protocol: "UDP", Client: at("[fd00:a::12]:5"), Frontend: at("[fd00:40::1]:53"), Endpoint: at("[fd00:a::11]:5353"),
			Seen: netip.MustParseAddr("fd00:a::12"), Zone: 1001, Mark: 0x101},
	}
	if got := parse(dump); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A detailed listing distinguishes a connection that the endpoint refused from one that it has not answered and one that has ended.
func TestParseDetailed(t *testing.T) {
	const text = `tcp,orig=(src=10.0.0.12,dst=40.0.0.1,sport=1,dport=80),reply=(src=10.0.0.11,dst=10.0.0.12,sport=8080,dport=1),id=0,zone=1001,status=0,timeout=26,mark=7,protoinfo=(state_orig=FIN_WAIT_2,state_reply=FIN_WAIT_2,wscale_orig=10,wscale_reply=10,flags_orig=WINDOW_SCALE,flags_reply=WINDOW_SCALE)
tcp,orig=(src=10.0.0.12,dst=40.0.0.2,sport=2,dport=80),reply=(src=10.0.0.11,dst=10.0.0.12,sport=9999,dport=2),id=0,zone=1001,status=0,timeout=26,mark=7,protoinfo=(state_orig=TIME_WAIT,state_reply=TIME_WAIT,wscale_orig=10,wscale_reply=0,flags_orig=WINDOW_SCALE,flags_reply=0)
tcp,orig=(src=10.0.0.12,dst=40.0.0.3,sport=3,dport=80),reply=(src=10.0.0.13,dst=10.0.0.12,sport=8080,dport=3),id=0,zone=1001,status=0,timeout=28,mark=7,protoinfo=(state_orig=SYN_SENT,state_reply=CLOSED,wscale_orig=10,wscale_reply=0,flags_orig=WINDOW_SCALE,flags_reply=0)
tcp,orig=(src=10.0.0.12,dst=40.0.0.4,sport=4,dport=80),reply=(src=10.0.0.11,dst=10.0.0.12,sport=8080,dport=4),id=0,zone=1001,status=0,timeout=5,mark=7,protoinfo=(state_orig=TIME_WAIT,state_reply=TIME_WAIT,wscale_orig=10,wscale_reply=10,flags_orig=WINDOW_SCALE,flags_reply=WINDOW_SCALE)
tcp,orig=(src=10.0.0.12,dst=40.0.0.5,sport=5,dport=80),reply=(src=10.0.0.11,dst=10.0.0.12,sport=8080,dport=5),id=0,zone=1001,status=0,timeout=5,mark=7,protoinfo=(state_orig=TIME_WAIT,state_reply=TIME_WAIT,wscale_orig=0,wscale_reply=0,flags_orig=0,flags_reply=0)
`
	type outcome struct {
		state   string
		refused bool
		expires uint32
	}
	want := []outcome{{"TIME_WAIT", false, 26}, {"TIME_WAIT", true, 26}, {"SYN_SENT", false, 28}, {"TIME_WAIT", false, 5}, {"TIME_WAIT", false, 5}}
	var got []outcome
	var o Outcomes
	for _, c := range parse(text) {
		got = append(got, outcome{c.State, c.Refused, c.Expires})
		o.Add(&c)
	}
	if !slices.Equal(got, want) || o != (Outcomes{Answered: 3, Unanswered: 1, Refused: 1}) {
		t.Errorf("got  %+v, %+v\nwant %+v", got, o, want)
	}
}

// Few connections without an answer are no problem: each has none for a moment.
func TestOutcomesProblem(t *testing.T) {
	for o, want := range map[Outcomes]string{
		{}: "", {Answered: 7}: "", {Answered: 100, Unanswered: 4}: "",
		{Answered: 90, Unanswered: 4, Refused: 6}: "TCP connections in the conntrack table at 12:00:05Z, closed ones for half a minute: 90 answered, 4 without answer, 6 refused",
		{Refused: 2}:    "TCP connections in the conntrack table at 12:00:05Z, closed ones for half a minute: 0 answered, 0 without answer, 2 refused: nothing listens at that address and port, or a filter of the endpoint's rejects them",
		{Unanswered: 1}: "TCP connections in the conntrack table at 12:00:05Z, closed ones for half a minute: 0 answered, 1 without answer, 0 refused",
	} {
		if got := o.Problem(time.Date(2026, 3, 1, 12, 0, 5, 0, time.UTC)); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}

// On the userspace datapath a UDP connection that expires later than an answered one has no answer; the kernel's says what was seen.
func TestUnanswered(t *testing.T) {
	const udp = "udp,orig=(src=10.0.0.1,dst=40.0.0.1,sport=1,dport=53),reply=(src=10.0.0.2,dst=10.0.0.1,sport=53,dport=1),zone=1001,"
	for rest, want := range map[string]bool{
		"status=0,timeout=59": true, "status=0,timeout=30": false, "status=SEEN_REPLY|CONFIRMED,timeout=119": false, "status=CONFIRMED,timeout=20": true, "mark=7": false,
	} {
		if c, ok := parseConnection(udp + rest); !ok || c.Unanswered != want {
			t.Errorf("%s: %+v, want %t", rest, c, want)
		}
	}
}
