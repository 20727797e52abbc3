package live

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/trace"
)

const dump = `tcp,orig=(src=10.0.0.12,dst=40.0.0.2,sport=40356,dport=80),reply=(src=10.0.1.11,dst=10.0.0.12,sport=8080,dport=40356),zone=1001,mark=733277697,protoinfo=(state=TIME_WAIT)
udp,orig=(src=fd00:a::12,dst=fd00:40::1,sport=5,dport=53),reply=(src=fd00:a::11,dst=fd00:a::12,sport=5353,dport=5),zone=1001,mark=0x101
icmp,orig=(src=10.0.0.12,dst=10.0.1.11,id=5,type=8,code=0),reply=(src=10.0.1.11,dst=10.0.0.12,id=5,type=0,code=0),zone=1001
tcp,orig=(src=10.0.0.12
`

func TestParseConnections(t *testing.T) {
	at := netip.MustParseAddrPort
	want := []Connection{
		{Protocol: "TCP", Client: at("10.0.0.12:40356"), Frontend: at("40.0.0.2:80"), Endpoint: at("10.0.1.11:8080"),
			Seen: netip.MustParseAddr("10.0.0.12"), Zone: 1001, Mark: 733277697, State: "TIME_WAIT"},
		{Protocol: "UDP", Client: at("[fd00:a::12]:5"), Frontend: at("[fd00:40::1]:53"), Endpoint: at("[fd00:a::11]:5353"),
			Seen: netip.MustParseAddr("fd00:a::12"), Zone: 1001, Mark: 0x101},
	}
	if got := parseConnections(dump); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestNoteConnections(t *testing.T) {
	at := netip.MustParseAddrPort
	conn := func(client, endpoint string) Connection {
		return Connection{Protocol: "TCP", Client: at(client), Frontend: at("40.0.0.1:80"), Endpoint: at(endpoint), Seen: at(client).Addr()}
	}
	list := []Connection{conn("10.0.0.1:1", "10.0.1.1:80"), conn("10.0.0.1:2", "10.0.1.2:80"), conn("10.0.0.2:1", "10.0.1.1:80")}
	for i, state := range []string{"SYN_SENT", "CLOSED", "ESTABLISHED"} {
		c := conn("10.0.0.5:1", "10.0.1.1:80")
		c.Client, c.State = netip.AddrPortFrom(c.Client.Addr(), uint16(1+i)), state
		list = append(list, c)
	}
	noteMasquerade(list, []Connection{{Protocol: "TCP", Client: at("10.0.0.1:1"), Frontend: at("10.0.1.1:80"), Seen: netip.MustParseAddr("172.16.0.2")}})
	r := &trace.Result{Verdict: trace.Deliver, Endpoints: []string{"10.0.1.1:80"}}
	says := func(from string) string {
		l := trace.NewLive()
		noteConnections(l, trace.Question{From: at(from), To: at("40.0.0.1:80"), Protocol: "TCP"}, r, list)
		return strings.Join(l.Steps, "\n")
	}
	for from, want := range map[string]string{
		"10.0.0.1:1": "an existing connection (TCP from 10.0.0.1:1 to 40.0.0.1:80): goes to 10.0.1.1:80 since it was opened, masqueraded as 172.16.0.2",
		"10.0.0.1:2": "an existing connection (TCP from 10.0.0.1:2 to 40.0.0.1:80): goes to 10.0.1.2:80 since it was opened; it stays there although new connections do not go there any more",
		"10.0.0.1:3": "",
		"10.0.0.5:1": "an existing connection (TCP from 10.0.0.5:1 to 40.0.0.1:80, SYN_SENT): goes to 10.0.1.1:80 since it was opened; the endpoint has not answered it",
		"10.0.0.5:2": "an existing connection (TCP from 10.0.0.5:2 to 40.0.0.1:80, CLOSED): goes to 10.0.1.1:80 since it was opened; it was reset",
		"10.0.0.5:3": "an existing connection (TCP from 10.0.0.5:3 to 40.0.0.1:80, ESTABLISHED): goes to 10.0.1.1:80 since it was opened",
	} {
		if got := says(from); got != want {
			t.Errorf("%s: %q, want %q", from, got, want)
		}
	}
	if got := says("10.0.0.1:0"); strings.Count(got, "an existing connection") != 2 {
		t.Errorf("any port: %s", got)
	}
	for range 10 {
		list = append(list, conn("10.0.0.1:9", "10.0.1.1:80"))
	}
	if got := says("10.0.0.1:0"); !strings.Contains(got, "and 7 more existing connections") {
		t.Errorf("many: %s", got)
	}
}
