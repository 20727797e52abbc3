package differential

import (
	"slices"
	"time"
)

// shrink returns a smaller case that still fails, within a time limit.
func shrink(c Case, fails func(Case) bool, limit time.Duration) Case {
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
					smaller := Case{c.Regular, append([]Event(nil), c.Events...)}
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

func without(c Case, i int) Case {
	return Case{c.Regular, append(append([]Event(nil), c.Events[:i]...), c.Events[i+1:]...)}
}

// failsLike returns the test whether a case still fails in the same way.
func failsLike(like Disagreement, dir string) func(Case) bool {
	return func(c Case) bool {
		return slices.ContainsFunc(c.Run(dir).Failures, func(d Disagreement) bool {
			return d.What == like.What && (d.KubeProxy == "") == (like.KubeProxy == "") && (d.Nkp == "") == (like.Nkp == "")
		})
	}
}
