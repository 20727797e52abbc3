// Package mode chooses the data plane that serves a node's Services (--mode), and the one that serves the
// node's own traffic beside a bridge (--host-traffic).
//
// [Facts.Choose] and [Facts.Beside] decide, and do nothing else: they ask for facts in the order in which
// they matter, and for none that does not, because some take seconds. [Node] gathers the facts on this node.
// Connecting to Open vSwitch, with or without waiting, is the caller's. Start reading at [Facts].
package mode
