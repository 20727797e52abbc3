// Package dataplane holds what all data planes have in common: their contract with the agent, and the parts
// that each of them needs to fulfil it.
//
//   - [Plane] is the contract: take the model's changes, program them, report the state. [Status] is the same
//     for all planes; its Detail is the state that only one plane has. Through [Hooks] a plane reports events
//     at once.
//   - [Inbox] collects changes while a plane is at work, so that any number of updates become one.
//   - [Runner] is the loop of a plane that works in rounds: minimum interval, backoff, since when a change
//     waits.
//   - [Refusals] holds and reports the items that were refused, and when each is retried.
//   - [Record] is what a status says of read-backs, repairs and failures; [Cache] keeps answers that are
//     dear.
//   - [Loop] records the progress of a plane's goroutine, and a [Watch] finds the loops that are stuck.
//
// A change is collected three times on its way, each time for a reason of its own:
//
//   - The agent's mailbox separates the source, which must not wait, from the agent's loop. It ends bursts:
//     ten changes in 10 ms become one or two transactions instead of ten.
//   - k8s.Tracker collects the objects that changed until Flush, so that a Service whose slices change ten
//     times is computed once.
//   - An Inbox separates the agent's loop from a plane that waits for the switch, the kernel or HNS.
//
// It depends on no plane, and planes do not depend on each other. Start reading at [Plane].
package dataplane
