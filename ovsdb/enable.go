package ovsdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// EnableOpenFlow15 adds OpenFlow15 to the bridge's protocols, keeping the others,
// and waits until the snapshot shows it. It does nothing if the bridge speaks 1.5
// already. ovs-vswitchd applies it a moment later; its connections stay open.
func (c *Client) EnableOpenFlow15(ctx context.Context) error {
	if err := c.enableOpenFlow15(ctx); err != nil {
		return fmt.Errorf("enable OpenFlow 1.5 on bridge %s: %w", c.opt.Bridge, err)
	}
	return nil
}

func (c *Client) enableOpenFlow15(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()

	sw, s, _ := c.state()
	switch err := sw.Check(); {
	case err == nil:
		return nil
	case !errors.Is(err, ErrNoOpenFlow15):
		return err
	case s == nil:
		return errors.Join(ErrUnreachable, c.LastError())
	}

	ops, err := addProtocols(sw)
	if err != nil {
		return err
	}
	results, err := s.transact(ctx, ops...)
	if err != nil {
		return err
	}
	if _, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		return err
	}

	_, err = c.await(ctx, Switch.Check)
	return err
}

// addProtocols inserts what is missing into the column (RFC 7047 §5.1) rather
// than setting it, so that a change by another program at the same time is kept.
// Only if the column is empty, the default must be spelled out; then the
// transaction first checks that the column is still empty.
func addProtocols(sw Switch) ([]ovsdb.Operation, error) {
	where := []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, sw.Bridge)}
	add, now := []string{openFlow15}, sw.Protocols
	if len(now) == 0 {
		add, now = sw.wantProtocols(), []string{}
	}

	insert, err := ovsdb.NewOvsSet(add)
	if err != nil {
		return nil, err
	}
	ops := []ovsdb.Operation{{
		Op: ovsdb.OperationMutate, Table: "Bridge", Where: where,
		Mutations: []ovsdb.Mutation{*ovsdb.NewMutation("protocols", ovsdb.MutateOperationInsert, insert)},
	}}

	if len(now) > 0 {
		return ops, nil
	}
	empty, err := ovsdb.NewOvsSet(now)
	if err != nil {
		return nil, err
	}
	timeout := 0 // at once
	return append([]ovsdb.Operation{{
		Op: ovsdb.OperationWait, Table: "Bridge", Where: where, Timeout: &timeout,
		Columns: []string{"protocols"}, Until: string(ovsdb.WaitConditionEqual),
		Rows: []ovsdb.Row{{"protocols": empty}},
	}}, ops...), nil
}
