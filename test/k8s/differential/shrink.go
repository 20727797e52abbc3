package differential

import (
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/test/oracle"
)

// shrink returns a smaller case that still fails, within a time limit.
func shrink(c oracle.Case, fails func(oracle.Case) bool, limit time.Duration) oracle.Case {
	deadline := time.Now().Add(limit)
	for again := true; again; {
		again = false
		for i := len(c.Events) - 1; i >= 0; i-- {
			if time.Now().After(deadline) {
				return c
			}
			if smaller := without(c, i); fails(smaller) {
				c, again = smaller, true
			}
		}
		for i := range c.Events {
			for changed := c.Events[i].Object != nil; changed; {
				changed = false
				for _, o := range simpler(c.Events[i].Object) {
					if time.Now().After(deadline) {
						return c
					}
					smaller := oracle.Case{Regular: c.Regular, Events: append([]oracle.Event(nil), c.Events...)}
					smaller.Events[i].Object = o
					if fails(smaller) {
						c, again, changed = smaller, true, true
						break
					}
				}
			}
		}
	}
	return c
}

func without(c oracle.Case, i int) oracle.Case {
	return oracle.Case{Regular: c.Regular, Events: append(append([]oracle.Event(nil), c.Events[:i]...), c.Events[i+1:]...)}
}

// failsLike returns the test whether a case still fails in the same way.
func failsLike(like oracle.Disagreement, dir string) func(oracle.Case) bool {
	return func(c oracle.Case) bool {
		return slices.ContainsFunc(replay(c, dir).Failures, func(d oracle.Disagreement) bool {
			return d.What == like.What && (d.KubeProxy == "") == (like.KubeProxy == "") && (d.Nkp == "") == (like.Nkp == "")
		})
	}
}
