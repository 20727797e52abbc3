// Package bridge keeps one Open vSwitch bridge in step with the model: the data plane of nodes that have one.
// It compiles the model's changes (package pipeline), sends them (package ofctrl), and reads the facts of the
// switch from its database (package ovsdb). Where the node's address is on the bridge, it also routes the
// node's own traffic for Services there.
//
// One goroutine, the loop of [Plane], owns all state and hands each event to the type that handles it:
//
//   - node collects the facts for the pipeline's configuration.
//   - programmer brings the switch in step: it sends changes, retries what the switch refused, and reads the
//     switch back.
//   - staleUDP deletes the conntrack entries of UDP connections to endpoints that stopped serving.
//   - affinity limits how many clients session affinity remembers.
//   - hostTraffic maintains the routes for the node's own traffic.
//
// liveness and rejecter may be used by other goroutines. Nothing here depends on where the model comes from.
package bridge
