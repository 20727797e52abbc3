package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// writeNodes prints a line for each node, with what is wrong there below it.
func writeNodes(out io.Writer, s *clusterStatus, now time.Time) error {
	var t table
	t.row("NODE", "MODE", "IN STEP", "SERVICE PORTS", "ENDPOINTS", "CHANGES P99", "VERSION", "AGE")
	for i := range s.Nodes {
		node := &s.Nodes[i]
		a := node.Answer
		if a == nil {
			t.row(node.Node, "-", "?", "-", "-", "-", "-", "-")
			t.below("NO ANSWER: " + node.Error)
			continue
		}

		step, p99 := "yes", "-"
		planes := planesOf(a)
		for _, p := range planes {
			if !p.inStep {
				step = "NO"
			}
		}

		switch {
		case len(planes) == 0:
			step = "NO"
		case planes[0].changes > 0:
			p99 = fmt.Sprintf("%.1f ms", planes[0].p99Milli)
		}

		t.row(node.Node, a.Mode, step, strconv.Itoa(a.ServicePorts), strconv.Itoa(a.Endpoints),
			p99, a.Version, now.Sub(a.Started).Round(time.Second).String())
		if !a.Source.Synced || a.Source.Answers != nil && !*a.Source.Answers {
			t.below("SOURCE: " + a.Source.Kind + " has not synced, or does not answer")
		}

		for _, p := range statusProblems(a, now) {
			t.below(p)
		}
	}

	if err := t.flush(out, 0); err != nil {
		return err
	}
	s.withoutNkp.write(out)
	return nil
}

// withoutNkp lists the nodes without a pod of nkp. WithoutError is why they are not known; "": they are.
type withoutNkp struct {
	WithoutNkp   []string `json:"withoutNkp"`
	WithoutError string   `json:"withoutError,omitempty"`
}

// without returns the nodes of the cluster that none of the peers runs on.
func (n *nodes) without(ctx context.Context, peers []peer) (w withoutNkp) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	w.WithoutNkp = []string{}
	names, err := n.cluster.Nodes(ctx)
	if err != nil {
		w.WithoutError = oneLine(err.Error())
	}
	for _, name := range names {
		if !slices.ContainsFunc(peers, func(p peer) bool { return p.Node == name }) {
			w.WithoutNkp = append(w.WithoutNkp, name)
		}
	}
	return w
}

// write prints the nodes on a line, if there are any.
func (w *withoutNkp) write(out io.Writer) {
	switch {
	case w.WithoutError != "":
		fmt.Fprintf(out, "nodes without nkp are not known: %s\n", w.WithoutError)
	case len(w.WithoutNkp) > 0:
		fmt.Fprintf(out, "%s without a pod of nkp's: %s\n",
			dataplane.Count(len(w.WithoutNkp), "node"), dataplane.Some(3, w.WithoutNkp))
	}
}

// planeState is the state of a data plane, or of one address family of it, in the list of nodes.
type planeState struct {
	inStep   bool
	changes  int
	p99Milli float64 // of the latency of changes
}

// planesOf returns the data planes of a status, the one for pods first.
func planesOf(s *api.Status) (planes []planeState) {
	if s.Status != nil {
		planes = append(planes, planeState{s.InStep, s.Programming.Changes, s.Programming.P99Milli})
	}
	if d := cmp.Or(s.IPTables, s.NFTables); d != nil {
		for i := range d.Families {
			f := &d.Families[i]
			planes = append(planes, planeState{f.InStep, f.Programming.Changes, f.Programming.P99Milli})
		}
	}
	if s.HNS != nil {
		planes = append(planes,
			planeState{s.HNS.InStep, s.HNS.Programming.Changes, s.HNS.Programming.P99Milli})
	}
	return planes
}
