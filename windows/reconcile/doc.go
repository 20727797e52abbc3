// Package reconcile brings HNS in step with a plan: it reads the objects of HNS, computes the difference, and
// applies it with as few calls as possible.
//
// Invariants:
//
//   - A load balancer that serves is never removed because a call failed or an object could not be read.
//     Errors are treated as transient: each is recorded, shown, and retried with its own backoff.
//   - A correct object is adopted as it is, whoever created it, so that a restart changes nothing. An object
//     that HNS stores differently than nkp requested is correct, too, as long as neither changes (Alteration).
//   - A foreign object is touched only if it holds a frontend of nkp's, or if TakeOver was called. nkp's own
//     objects are those whose ids are in the state file, and remote endpoints with the MAC address that
//     Service proxies derive from the address.
//
// Start reading at Engine.Sync.
package reconcile
