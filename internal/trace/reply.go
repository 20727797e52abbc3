package trace

import (
	"fmt"

	"github.com/nkp-proxy/nkp/k8s"
)

// Reply explains what happens to the answer to the packet.
type Reply struct {
	// Verdict is Deliver if the client gets it, Drop if there is none, and Untouched if nkp has nothing to do
	// with it.
	Verdict Verdict  `json:"verdict"`
	Steps   []string `json:"steps"`
	Live    *Live    `json:"live,omitempty"` // comparison with what is installed; nil: not compared
}

// ExplainReply sets r.Reply. q and node are those that r explains.
func (r *Result) ExplainReply(q Question, node *k8s.Node) {
	y := &Reply{Verdict: r.Verdict, Steps: []string{}}
	r.Reply = y
	step := func(format string, args ...any) { y.Steps = append(y.Steps, fmt.Sprintf(format, args...)) }
	client := q.From.Addr()

	switch r.Verdict {
	case Reject:
		y.Verdict = Deliver
		step("nkp answers %s itself, from %s: TCP RST, or ICMP port unreachable", client, q.To)
		return
	case Drop:
		step("there is none: the packet is dropped")
		return
	case Untouched:
		step("nkp does not change it, because it has nothing to do with the packet")
		return
	}

	if r.Relayed {
		y.Verdict = Untouched
		step("%s answers to %s. Its own node replaces the source of the answer with %s: "+
			"the answer does not come through here", r.Endpoints[0], client, q.To)
		return
	}

	if r.Userspace {
		step("the endpoint answers to nkp's own connection, and nkp copies the answer to the client's")
		return
	}

	from := "the endpoint"
	if len(r.Endpoints) == 1 {
		from = r.Endpoints[0]
	}

	switch r.Masquerade {
	case Always:
		step("%s answers to this node, which it takes for the client", from)
		step("the conntrack entry of the connection replaces this node's address with %s", client)
	case Hairpin:
		step("%s answers to %s; if it is the client itself, to the address that it was masqueraded as, "+
			"so that the answer comes back through here", from, client)
	default:
		step("%s answers to %s", from, client)
		if r.Source == k8s.Pod && !r.PodHere(node) {
			step("%s is not on this node: the answer has to come back through the node that translated the "+
				"packet", client)
		}
	}

	step("the conntrack entry replaces the source of the answer with %s", q.To)
	step("delivered to %s, which sees an answer from %s", client, q.To)
}
