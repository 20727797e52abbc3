package ovsdb

import (
	"context"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// Timeouts returns the timeouts in seconds that the database sets for a conntrack zone of a datapath type
// (ovs-vsctl add-zone-tp), by name, such as tcp_established. It asks the database each time, because old
// schemas do not have these tables: then it returns an error.
func (c *Client) Timeouts(ctx context.Context, datapathType string, zone uint16) (map[string]int, error) {
	_, s, _ := c.state()
	if s == nil {
		return nil, ErrUnreachable
	}
	var ops []ovsdb.Operation
	for _, t := range []struct{ table, column string }{
		{database, "datapaths"},
		{"Datapath", "ct_zones"},
		{"CT_Zone", "timeout_policy"},
		{"CT_Timeout_Policy", "timeouts"},
	} {
		ops = append(ops, ovsdb.Operation{
			Op:      ovsdb.OperationSelect,
			Table:   t.table,
			Columns: []string{"_uuid", t.column},
			Where:   []ovsdb.Condition{},
		})
	}
	results, err := s.transact(ctx, ops...)
	if err != nil {
		return nil, err
	}
	if _, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		return nil, err
	}

	// Each table's row names that of the next; the first table has one row.
	id, out := any(nil), map[string]int{}
	for i, key := range []any{datapathType, float64(zone), nil} {
		if id = valueIn(results[i].Rows, ops[i].Columns[1], id, key); id == nil {
			return out, nil
		}
	}
	timeouts, _ := valueIn(results[3].Rows, "timeouts", id, nil).(ovsdb.OvsMap)
	for name, seconds := range timeouts.GoMap {
		if n, ok := seconds.(float64); ok {
			out[name.(string)] = int(n)
		}
	}
	return out, nil
}

// valueIn returns the value of a column in the row with a UUID, or in the first row if that is nil; with a
// key that in its map.
func valueIn(rows []ovsdb.Row, column string, id, key any) any {
	for _, r := range rows {
		if id == nil || r["_uuid"] == id {
			if m, ok := r[column].(ovsdb.OvsMap); ok && key != nil {
				return m.GoMap[key]
			}
			return r[column]
		}
	}
	return nil
}
