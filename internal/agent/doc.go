// Package agent is the running nkp of a node: it takes changes from a source (package k8s), works out what
// they mean for this node (the model), and hands that to the data plane, which brings switch or kernel in
// step.
//
// One goroutine, the loop in agent.go, owns the model; everything else sends it messages. Commands on the
// same node ask the agent through a unix socket (socket.go), in the words of package api. Start reading at
// [Agent].
package agent
