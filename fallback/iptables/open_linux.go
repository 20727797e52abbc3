package iptables

import (
	"context"
	"errors"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Open opens the tables of each family. While they are busy (another process holds the xtables lock) it tries
// again, until the context ends.
func (k kernel) Open(ctx context.Context, p *fallback.Plane) (map[k8s.Family]func(context.Context), error) {
	for {
		serve, err := k.tryOpen(ctx, p)
		if !errors.Is(err, restore.ErrBusy) || ctx.Err() != nil {
			return serve, err
		}
		p.Log.Warn("cannot read the iptables tables now; retrying", "in", dataplane.RetryFirst, "error", err)
		p.Failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(dataplane.RetryFirst):
		}
	}
}

// tryOpen chooses the back end, and opens the tables of each family.
func (k kernel) tryOpen(
	ctx context.Context, p *fallback.Plane,
) (map[k8s.Family]func(context.Context), error) {
	choice, err := restore.Choose(ctx, restore.Backend(k.asked.Backend))
	if err != nil {
		return nil, err
	}

	limits := legacyLimits
	if choice.Backend == restore.NFT {
		limits = nftLimits
	}

	serve := map[k8s.Family]func(context.Context){}
	version := ""
	var problems []error
	for _, f := range k.asked.ToServe() {
		t, err := restore.Open(ctx, choice.Backend, f)
		if errors.Is(err, restore.ErrBusy) || ctx.Err() != nil {
			return nil, err
		} else if err != nil {
			problems = append(problems, err)
			continue
		}

		version = t.Version
		p.Chosen(string(choice.Backend), choice.Reason, version, t.RandomFully)
		of := p.Worker(ctx, f)
		t.Progress = of.Loop.Progress
		w := newWorker(of, t, limits)
		w.backend = string(choice.Backend)
		serve[f] = func(ctx context.Context) { w.Run(ctx, w, "bringing the rules in step") }
	}

	if len(serve) == 0 || len(problems) > 0 && len(k.asked.Families) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, err := range problems {
		p.Log.Warn("no iptables for an address family: its Services are not served", "error", err)
	}
	p.Log.Info("Services are served by iptables",
		"backend", choice.Backend, "because", choice.Reason, "version", version, "scope", k.asked.Scope)
	return serve, nil
}
