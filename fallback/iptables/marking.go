package iptables

import (
	"context"

	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// marking records each read of the tables as progress of the worker. The worker itself records its transactions.
type marking struct {
	tables
	loop *dataplane.Loop
}

func (m marking) Rules(ctx context.Context, table, chain string) (list []string, ok bool, err error) {
	defer m.loop.Progress()
	return m.tables.Rules(ctx, table, chain)
}

func (m marking) Save(ctx context.Context, table string, f func(chain, rule string)) error {
	defer m.loop.Progress()
	return m.tables.Save(ctx, table, func(chain, rule string) {
		m.loop.Progress()
		f(chain, rule)
	})
}

func (m marking) ChainNames(ctx context.Context, table string) ([]string, error) {
	defer m.loop.Progress()
	return m.tables.ChainNames(ctx, table)
}
