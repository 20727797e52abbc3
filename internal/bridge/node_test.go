package bridge

import (
	"testing"
	"testing/synctest"
	"time"

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
