// Package reconcile makes HNS have what a plan wants: it reads what is there, computes the difference, and makes as few
// calls as that takes.
//
// What holds, whatever happens:
//
//   - A load balancer that serves is never taken away because a call failed or an object could not be read. Errors are
//     transient: they are kept, shown, and tried again with a growing delay, each by itself.
//   - What is there and right is adopted as it is, whoever made it, so that a restart changes nothing.
//   - Of other owners' objects only those are touched that hold a frontend of ours. Ours are those whose ids are in the state
//     file, and remote endpoints with the MAC address that Service proxies derive from the address.
//
// Start reading at Engine.Sync.
package reconcile
