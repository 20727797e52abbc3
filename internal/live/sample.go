package live

import (
	"context"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// sampled returns the Sample of the connections that each lists and that are about the question.
func sampled(each func(func(*dpctl.Connection) error) error, q trace.Question) (*trace.Sample, error) {
	s := &trace.Sample{Connections: []trace.Attempt{}}
	more := 0
	err := each(func(c *dpctl.Connection) error {
		switch {
		case !matchesQuestion(c, q):
		case len(s.Connections) == trace.MaxSampled:
			more++
		default:
			s.Connections = append(s.Connections, trace.Attempt{
				Client:   c.Client,
				Endpoint: c.Endpoint,
				State:    c.State,
				Outcome:  outcomeOf(c),
			})
		}
		return nil
	})
	if more > 0 {
		s.Note = fmt.Sprintf("%d more connections of the client are not followed", more)
	}
	return s, err
}

func outcomeOf(c *dpctl.Connection) trace.Outcome {
	switch {
	case c.Protocol != "TCP":
		return trace.Unknown
	case c.Refused:
		return trace.Refused
	case c.State == "SYN_SENT":
		return trace.Unanswered
	}
	return trace.Answered
}

// Sample returns what the switch shows of the connections that q is about. It lists the connections of nkp's
// zone once.
func (s *Switch) Sample(ctx context.Context, q trace.Question, r *trace.Result) (*trace.Sample, error) {
	each, _ := s.lister(ctx)
	sample, err := sampled(func(do func(*dpctl.Connection) error) error {
		return each(ctx, s.Config.Layout.ZoneDNAT, do)
	}, q)
	if err != nil {
		return nil, err
	}
	if r.Service == "" || s.Packets == nil {
		return sample, nil
	}
	if sample.Packets, err = s.Packets(ctx, r.Port); err != nil {
		sample.Note = fmt.Sprintf("packets cannot be counted: %v", err)
	}
	return sample, nil
}

// KernelSample returns what the kernel's conntrack table shows of the connections that q is about. each calls
// its argument for each connection. Packets are not counted.
func KernelSample(each func(func(*dpctl.Connection) error) error, q trace.Question) (*trace.Sample, error) {
	sample, err := sampled(each, q)
	if err != nil && !errors.Is(err, conntrack.ErrInterrupted) {
		return nil, err
	}
	return sample, nil
}
