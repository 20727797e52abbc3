package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// ReadRules returns the rules of a family that are installed now, of all owners: table -> chain -> rules in
// order, without "-A CHAIN". backend is nf_tables or legacy; "" is the one that the rest of the node uses.
func ReadRules(ctx context.Context, backend string, f k8s.Family) (map[string]map[string][]string, error) {
	choice, err := restore.Choose(ctx, restore.Backend(backend))
	if err != nil {
		return nil, err
	}
	t, err := restore.Open(ctx, choice.Backend, f)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string][]string{}
	for _, table := range []rules.Table{rules.NAT, rules.Filter} {
		if all[string(table)], err = t.Chains(ctx, string(table)); err != nil {
			return nil, err
		}
	}
	return all, nil
}
