package bridge

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/ofctrl"
)

// Where a canary is lost shows in how many packets its two flows have counted since one was lost before.
func TestWhereLost(t *testing.T) {
	counts := func(first, last uint64) canaryCounts {
		return canaryCounts{ofctrl.Counters{Flows: 1, Packets: first}, ofctrl.Counters{Flows: 1, Packets: last}}
	}
	was := counts(3, 6)
	for want, now := range map[string]canaryCounts{
		"does not come to its Service's flow":  was,
		"between table 1 and table 30":         counts(6, 6),
		"Service's flow in table 1 is missing": {{}, {Flows: 1, Packets: 6}},
		"ends its path in table 30 is missing": {{Flows: 1, Packets: 6}, {}},
	} {
		if r := now.whereLost(was); !strings.Contains(r.Lost, want) || r.Unknown != "" {
			t.Errorf("%+v, want %q", r, want)
		}
	}
	if r := counts(6, 9).whereLost(was); r.Lost != "" || r.Unknown == "" {
		t.Errorf("the switch let it pass: %+v", r)
	}
}
