package trace

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// attempt reads "PORT ENDPOINT STATE OUTCOME"; STATE "-" is none.
func attempt(t *testing.T, text string) Attempt {
	t.Helper()
	w := strings.Fields(text)
	if len(w) != 4 {
		t.Fatal(text)
	}
	return Attempt{netip.MustParseAddrPort("10.0.0.5:" + w[0]), netip.MustParseAddrPort(w[1] + ":80"), strings.TrimPrefix(w[2], "-"), Outcome(w[3])}
}

func TestFollower(t *testing.T) {
	const none = "none"
	for _, c := range []struct {
		name    string
		verdict Verdict
		samples [][]string // of attempts; the first is before
		packets []uint64   // First of each sample; nil: not counted
		events  string
		want    string
	}{
		{"nothing came", Deliver, [][]string{{"1 10.0.0.7 TIME_WAIT answered"}, {"1 10.0.0.7 TIME_WAIT answered"}, {}}, []uint64{5, 5, 5}, none, "no packet of 10.0.0.5 to 1.2.3.4:80 came to nkp's flows in 2 s"},
		{"other clients", Deliver, [][]string{{}, {}}, []uint64{5, 8}, none, "although 3 first packets for the Service came"},
		{"refused by nkp", Reject, [][]string{{}, {}}, []uint64{5, 6}, none, "nkp refused 1 packet in 1 s (of all clients)"},
		{"dropped by nkp", Drop, [][]string{{}, {}}, []uint64{5, 7}, none, "nkp dropped 2 packets in 1 s"},
		{"not counted", Deliver, [][]string{{}, {}}, nil, none, "no new conntrack entry of 10.0.0.5"},
		{"counters began again", Deliver, [][]string{{}, {}}, []uint64{5, 1}, none, "no packet of 10.0.0.5"},
		{"answered", Deliver, [][]string{{}, {"2 10.0.0.7 SYN_SENT unanswered"}, {"2 10.0.0.7 ESTABLISHED answered"}, {"2 10.0.0.7 ESTABLISHED answered"}}, []uint64{0, 1, 1, 1},
			"1.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: no answer yet (SYN_SENT)|2.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: answered (ESTABLISHED)",
			"1 connection of 10.0.0.5 in 3 s: 1 answered by 10.0.0.7:80|the Service's flows took 1 first packet of all clients; 0 went to endpoints, 0 came back"},
		{"unanswered most", Deliver, [][]string{{}, {"2 10.0.0.7 CLOSED refused", "3 10.0.0.8 SYN_SENT unanswered", "4 10.0.0.8 SYN_SENT unanswered"}}, nil, "",
			"3 connections of 10.0.0.5 in 1 s: 2 unanswered by 10.0.0.8:80, 1 refused by 10.0.0.7:80"},
		{"gone", Deliver, [][]string{{}, {"2 10.0.0.7 SYN_SENT unanswered"}, {}, {}}, nil,
			"1.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: no answer yet (SYN_SENT)|2.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: its entry is gone before an answer was seen: refused, or deleted",
			"1 gone to 10.0.0.7:80"},
		{"an old one, used again", Deliver, [][]string{{"2 10.0.0.7 TIME_WAIT answered"}, {"2 10.0.0.7 SYN_SENT unanswered"}}, nil, "", "1 unanswered by 10.0.0.7:80"},
		{"an old one, used again and answered at once", Deliver, [][]string{{"2 10.0.0.7 TIME_WAIT answered"}, {"2 10.0.0.7 ESTABLISHED answered"}}, nil, "", "1 answered by 10.0.0.7:80"},
		{"an old one ends", Deliver, [][]string{{"2 10.0.0.7 ESTABLISHED answered"}, {"2 10.0.0.7 FIN_WAIT answered"}, {"2 10.0.0.7 TIME_WAIT answered"}}, nil, none, "no new conntrack entry of 10.0.0.5"},
		{"a new one ends", Deliver, [][]string{{}, {"2 10.0.0.7 ESTABLISHED answered"}, {"2 10.0.0.7 TIME_WAIT answered"}}, nil,
			"1.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: answered (ESTABLISHED)", "1 answered by 10.0.0.7:80"},
		{"UDP", Deliver, [][]string{{}, {"2 10.0.0.7 - unknown"}}, nil, "1.0 s: from 10.0.0.5:2, to endpoint 10.0.0.7:80: opened", "1 unknown to 10.0.0.7:80"},
	} {
		var f *Follower
		for i, list := range c.samples {
			s := &Sample{}
			for _, a := range list {
				s.Connections = append(s.Connections, attempt(t, a))
			}
			if c.packets != nil {
				s.Packets = &Packets{First: c.packets[i]}
			}
			if i == 0 {
				f = NewFollower(&Result{Verdict: c.verdict, Packet: Packet{From: "10.0.0.5", To: "1.2.3.4:80", Protocol: "TCP"}}, s)
				continue
			}
			f.Add(float64(i), s)
		}
		got := f.Finish()
		if events := strings.Join(got.Events, "|"); c.events == none && events != "" || c.events != none && c.events != "" && events != c.events {
			t.Errorf("%s: events\n%s\nwant\n%s", c.name, events, c.events)
		}
		if summary := strings.Join(got.Summary, "|"); !strings.Contains(summary, c.want) {
			t.Errorf("%s: %s\nwant %s", c.name, summary, c.want)
		}
	}
}

// A client that opens very many connections makes neither the list nor the lines grow without bound.
func TestFollowerIsBounded(t *testing.T) {
	f := NewFollower(&Result{}, &Sample{})
	for i := range 2 * MaxSampled {
		f.Add(1, &Sample{Connections: []Attempt{attempt(t, fmt.Sprintf("%d 10.0.0.7 SYN_SENT unanswered", i+1))}})
	}
	if got := f.Finish(); len(got.Connections) != MaxSampled || len(got.Events) != maxEvents {
		t.Errorf("%d connections, %d events", len(got.Connections), len(got.Events))
	}
}
