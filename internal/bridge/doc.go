// Package bridge keeps one Open vSwitch bridge in step with the model: the data plane of nodes that have one. It compiles
// the model's changes (package pipeline), sends them (package ofctrl), and takes the facts of the switch from its database
// (package ovsdb). Where the node itself lives on the bridge, it also leads the node's own traffic for Services there.
//
// One goroutine, the loop of [Plane], owns all state; everything else sends it messages. It does not know where the model
// comes from: that is the agent's business.
package bridge
