package bridge

import (
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
)

// What flows count becomes a Service port's counters: whoever opens a connection counts among the client's packets, and
// frames lose their Ethernet headers.
func TestAddUp(t *testing.T) {
	web, dns := k8s.PortName{Port: "web"}, k8s.PortName{Port: "dns"}
	tally := func(cookie uint64, priority uint16) (k8s.PortName, pipeline.Tally) {
		switch cookie {
		case 1:
			return web, pipeline.Tally(priority)
		case 2:
			return dns, pipeline.Tally(priority)
		}
		return k8s.PortName{}, pipeline.TallyNone
	}
	got := map[k8s.PortName]k8s.Counters{}
	addUp(got, []ofctrl.FlowCounter{
		{Cookie: 1, Priority: uint16(pipeline.TallyOpened), Packets: 3, Size: 3 * 74},
		{Cookie: 1, Priority: uint16(pipeline.TallyFromClient), Packets: 10, Size: 1000},
		{Cookie: 1, Priority: uint16(pipeline.TallyFromEndpoint), Packets: 8, Size: 9000},
		{Cookie: 2, Priority: uint16(pipeline.TallyOpened)},
		{Cookie: 3, Priority: uint16(pipeline.TallyOpened), Packets: 5, Size: 500}, // nobody's
		{Cookie: 2, Priority: uint16(pipeline.TallyFromClient), Packets: 1, Size: 1},
	}, tally)
	if len(got) != 2 {
		t.Fatalf("%d Service ports: %v", len(got), got)
	}
	for name, want := range map[k8s.PortName]string{
		web: fmt.Sprint(3, 13, 8, 3*60+1000-140, 9000-8*14),
		dns: fmt.Sprint(0, 1, 0, 0, 0), // never below 0
	} {
		c := got[name]
		if text := fmt.Sprint(c.Connections, c.Packets.In, c.Packets.Out, c.Bytes.In, c.Bytes.Out); text != want {
			t.Errorf("%s: %s, want %s", name.Port, text, want)
		}
	}
}
