package ovsdb

import (
	"context"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// Timeouts returns the timeouts in seconds that the database sets for a conntrack zone of a datapath type (ovs-vsctl add-zone-tp), by
// name, such as tcp_established. It asks the database each time, because old schemas do not have these tables: then it returns an error.
func (c *Client) Timeouts(ctx context.Context, datapathType string, zone uint16) (map[string]int, error) {
	_, s, _ := c.state()
	if s == nil {
		return nil, ErrUnreachable
	}
	var ops []ovsdb.Operation
	for _, t := range []struct{ table, column string }{
		{database, "datapaths"}, {"Datapath", "ct_zones"}, {"CT_Zone", "timeout_policy"}, {"CT_Timeout_Policy", "timeouts"},
	} {
		ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationSelect, Table: t.table, Columns: []string{"_uuid", t.column}, Where: []ovsdb.Condition{}})
	}
	results, err := s.transact(ctx, ops...)
	if err != nil {
		return nil, err
	}
	if _, err := ovsdb.CheckOperationResults(results, ops); err != nil {
		return nil, err
	}

	// Each table's row names that of the next.
	next := any(firstOf(results[0].Rows, "datapaths", datapathType))
	for i, step := range []struct {
		column string
		key    any
	}{{"ct_zones", float64(zone)}, {"timeout_policy", nil}} {
		next = firstOf(rowOf(results[i+1].Rows, next), step.column, step.key)
	}
	out := map[string]int{}
	for _, row := range rowOf(results[3].Rows, next) {
		timeouts, _ := row["timeouts"].(ovsdb.OvsMap)
		for name, seconds := range timeouts.GoMap {
			if n, ok := seconds.(float64); ok {
				out[name.(string)] = int(n)
			}
		}
	}
	return out, nil
}

// rowOf returns the row with a UUID, if there is one.
func rowOf(rows []ovsdb.Row, id any) []ovsdb.Row {
	for _, r := range rows {
		if id != nil && r["_uuid"] == id {
			return []ovsdb.Row{r}
		}
	}
	return nil
}

// firstOf returns the value of a column of the first row: under a key if it is a map; nil: there is none.
func firstOf(rows []ovsdb.Row, column string, key any) any {
	if len(rows) == 0 {
		return nil
	}
	if m, ok := rows[0][column].(ovsdb.OvsMap); ok {
		return m.GoMap[key]
	}
	return rows[0][column]
}
