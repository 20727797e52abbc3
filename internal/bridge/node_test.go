package bridge

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A program that adds and deletes a flow that forwards, 1,000 times in 10 s, has nkp follow at most one deletion a second. The last one is
// followed, and the first flow that decides at once, for good.
func TestOthersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &facts{}
		changes := 0
		for range 1000 {
			for _, now := range []flow.Others{flow.OthersForward, flow.OthersNone} {
				if n.followOthers(now) {
					changes++
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		if changes < 18 || changes > 22 {
			t.Errorf("%d changes of the pipeline; want some 20", changes)
		}
		if !n.held || n.others != flow.OthersForward {
			t.Errorf("held %t, %d", n.held, n.others)
		}

		time.Sleep(time.Until(n.returned.Add(returnPause)))
		if !n.followOthers(flow.OthersNone) || n.held {
			t.Error("the last change is not followed")
		}
		if !n.followOthers(flow.OthersForward) || !n.followOthers(flow.OthersDecide) || n.followOthers(flow.OthersNone) || n.held {
			t.Error("flows that decide are not followed at once, or not for good")
		}
	})
}

// A missing uplink is logged once, however the bridge's ports change, and again when the reason changes or it was there meanwhile. The kept
// warning names the ports of now.
func TestUplinkIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	n := &facts{log: slog.New(slog.NewTextHandler(&log, nil))}
	port := func(names ...string) (list []ovsdb.Port) {
		for i, name := range names {
			list = append(list, ovsdb.Port{Name: name, OFPort: uint32(10 + i)})
		}
		return list
	}
	for i, step := range []struct {
		want   string // the uplink; "": it is there
		ports  []ovsdb.Port
		logged int
	}{
		{"eth9", nil, 1}, {"eth9", port("pod-1"), 1}, {"eth9", port("pod-1", "pod-2"), 1}, {"eth8", port("pod-1"), 2},
		{"", nil, 2}, {"eth8", port("pod-1"), 3},
	} {
		var warnings []string
		if step.want != "" {
			_, err := ovsdb.Switch{Bridge: "br-int", Ports: step.ports}.Uplink(step.want)
			warnings = []string{"another", err.Error()}
		}
		n.keepWarnings(warnings)
		if got := strings.Count(log.String(), "no uplink: "); got != step.logged {
			t.Errorf("%d: logged %d times, want %d\n%s", i, got, step.logged, log.String())
		}
		if len(step.ports) > 0 && !strings.Contains(n.warnings[1], step.ports[len(step.ports)-1].Name) {
			t.Errorf("%d: kept %q", i, n.warnings)
		}
	}
}
