package live

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
)

func TestNoteConnections(t *testing.T) {
	at := netip.MustParseAddrPort
	conn := func(client, endpoint string) dpctl.Connection {
		return dpctl.Connection{Protocol: "TCP", Client: at(client), Frontend: at("40.0.0.1:80"), Endpoint: at(endpoint), Seen: at(client).Addr()}
	}
	list := []dpctl.Connection{conn("10.0.0.1:1", "10.0.1.1:80"), conn("10.0.0.1:2", "10.0.1.2:80"), conn("10.0.0.2:1", "10.0.1.1:80")}
	for i, state := range []string{"SYN_SENT", "CLOSED", "ESTABLISHED"} {
		c := conn("10.0.0.5:1", "10.0.1.1:80")
		c.Client, c.State = netip.AddrPortFrom(c.Client.Addr(), uint16(1+i)), state
		list = append(list, c)
	}
	setSeen(list, []dpctl.Connection{{Protocol: "TCP", Client: at("10.0.0.1:1"), Frontend: at("10.0.1.1:80"), Seen: netip.MustParseAddr("172.16.0.2")}})
	r := &trace.Result{Verdict: trace.Deliver, Endpoints: []string{"10.0.1.1:80"}}
	says := func(from string) string {
		l := trace.NewLive()
		each := func(do func(*dpctl.Connection) error) (err error) {
			for i := range list {
				err = errors.Join(err, do(&list[i]))
			}
			return err
		}
		mine, _, _ := matchingConnections(each, trace.Question{From: at(from), To: at("40.0.0.1:80"), Protocol: "TCP"}, r)
		addConnections(l, r, mine)
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
