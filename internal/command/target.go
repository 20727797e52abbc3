package command

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// target is where a reading command asks: the agent of this machine, or, as kubectl's plugin, the agents of a
// cluster's nodes.
type target struct {
	*settings
	nodes *nodes // nil: this machine
}

func thisMachine() *target { return &target{settings: newSettings()} }

func clusterNodes() *target { return &target{newSettings(), &nodes{}} }

// peer is an agent to ask. Node and Pod are "" for the agent of this machine.
type peer struct {
	Node, Pod string
	*api.Caller
}

// peers returns the agents to ask: that of this machine, that of --node, or those of all nodes, sorted by
// node.
func (on *target) peers(cmd *cobra.Command) ([]peer, error) {
	if on.nodes != nil {
		return on.nodes.peers(cmd.Context())
	}
	if err := on.configure(cmd); err != nil {
		return nil, err
	}
	return []peer{{Caller: api.NewCaller(on.Socket)}}, nil
}

// timeout returns how long one agent may take to answer.
func (on *target) timeout() time.Duration {
	if on.nodes != nil {
		return on.nodes.timeout
	}
	return askTimeout
}

// answer is what an agent answered, or why it did not.
type answer[T any] struct {
	Node   string `json:"node"`
	Pod    string `json:"pod"`
	Answer *T     `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
	err    error
}

// parallelNodes bounds how many agents are asked at a time.
const parallelNodes = 32

// askAll asks each agent, parallelNodes at a time, and returns the answers in the order of peers. An answer
// or its error is set.
func askAll[T any](
	ctx context.Context,
	peers []peer,
	timeout time.Duration,
	question func(context.Context, *api.Caller) (*T, error),
) []answer[T] {
	answers := make([]answer[T], len(peers))
	var wait sync.WaitGroup
	slots := make(chan struct{}, parallelNodes)
	for i, p := range peers {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			defer p.Close()

			v, err := question(ctx, p.Caller)
			answers[i] = answer[T]{Node: p.Node, Pod: p.Pod, Answer: v}
			if err != nil {
				answers[i] = answer[T]{Node: p.Node, Pod: p.Pod, Error: oneLine(err.Error()), err: err}
			}
		})
	}
	wait.Wait()
	return answers
}

// complain returns the error for the nodes that did not answer, and if print is set writes why to w; nil: all
// answered.
func complain[T any](w io.Writer, print bool, answers []answer[T]) error {
	failed := 0
	for _, a := range answers {
		if a.Error == "" {
			continue
		}
		failed++
		if print {
			fmt.Fprintln(w, a.Error)
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s did not answer", failed, dataplane.Count(len(answers), "node"))
}
