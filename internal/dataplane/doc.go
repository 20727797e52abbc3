// Package dataplane is what all data planes have in common: the contract that they fulfil towards the agent, and the parts
// that each of them needs for it.
//
//   - [Plane] is the contract: take the model's changes, work, say how things are. [Status] is the same for all planes;
//     what only one of them knows is its Detail. [Hooks] are how a plane says at once what happens.
//   - [Inbox] collects changes while a plane is at work, so that any number of updates become one.
//   - [Refusals] holds what a plane could not get in force, and when it is tried again.
//   - [Loop] is marked by the goroutine that does a plane's work, and a [Watch] finds the loops that are stuck.
//
// A change is collected three times on its way, each time for a reason of its own: the agent's mailbox separates the source
// from the agent's loop, which may have much to compute; k8s.Tracker collects the objects that changed until their meaning
// is asked for, so that a Service whose slices change ten times is computed once; an Inbox separates the agent's loop from
// a plane that waits for switch, kernel or HNS.
//
// It knows no plane, and planes do not know each other. Start reading at [Plane].
package dataplane
