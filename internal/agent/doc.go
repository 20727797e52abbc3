// Package agent is the running nkp of a node: it takes changes from a source (package k8s), compiles them
// (package pipeline) and brings the switch in step (package ofctrl), with the switch's facts from package ovsdb.
//
// One goroutine, the loop in agent.go, owns all state; everything else sends it messages. Commands on the same
// node ask it through a unix socket (socket.go). Start reading at [Agent].
package agent
