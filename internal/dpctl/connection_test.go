package dpctl

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
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
