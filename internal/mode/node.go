package mode

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
)

// Node are the settings by which the facts of this node are gathered.
type Node struct {
	*bridge.Settings
	ServiceProxyName string

	// Of what nftables or iptables would serve.
	IPTables iptables.Options
	NFTables nftables.Options
}

// Facts returns the facts for a choice. connect may be nil for Beside, and served for Choose: it returns the
// data planes of the last run, because rules of another Service proxy keep nkp from starting to serve beside
// a bridge, not from going on. It is called after the check for rules: an agent that starts in between
// records its data planes before it writes a rule.
func (n *Node) Facts(
	ctx context.Context, asked Mode, connect func() (bool, error), served func() []Mode,
) *Facts {
	lacking := sync.OnceValue(func() error { return iptables.Available(n.IPTables.Backend) })
	return &Facts{
		Asked:       asked,
		OVSDB:       n.OVSDB,
		Bridge:      n.Bridge,
		OVS:         n.OVS,
		Connect:     connect,
		NotNFTables: func() string { return n.NotNFTables(ctx) },

		HostTraffic: n.HostTraffic,
		SharesNode:  n.ServiceProxyName != "",
		NotIPTables: lacking,
		AnotherProxy: func() string {
			others := anotherProxy(ctx, lacking() == nil)
			goesOn := func(m Mode) bool { return m == IPTables || m == NFTables }
			if others != "" && slices.ContainsFunc(served(), goesOn) {
				return ""
			}
			return others
		},
	}
}

// OVS returns the directory of the database's socket, and whether there is anything in it. An empty directory
// does not count, because kubelet makes one where a pod mounts it (deploy/kubernetes/auto). One that may not
// be read does, and so does a database elsewhere.
func (n *Node) OVS() (dir string, installed bool) {
	path, local := strings.CutPrefix(n.OVSDB, "unix:")
	if !local {
		return "", true
	}
	dir = filepath.Dir(path)
	files, err := os.ReadDir(dir)
	return dir, len(files) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// hostLimit is how long NotNFTables looks for what speaks against nftables beside a bridge. The agent's loop
// waits for it.
const hostLimit = 5 * time.Second

// NotNFTables returns why nftables must not take the place of iptables, where --mode leaves the choice; "":
// it may. It may not where the kernel lacks something, nor where it would serve less: iptables accepts
// Service traffic in its chains FORWARD and INPUT, and an accept in another table does not overrule a drop in
// these.
func (n *Node) NotNFTables(ctx context.Context) string {
	if n.NFTables.Scope != serving.Everything {
		limited, cancel := context.WithTimeout(ctx, hostLimit)
		defer cancel()
		ctx = limited
	}
	if n.IPTables.Backend != "" {
		return "--iptables-backend is set"
	}
	if err := nftables.Lacking(n.NFTables); err != nil {
		return err.Error()
	}
	drops, err := iptables.Drops(ctx, n.IPTables)
	if err != nil {
		return err.Error()
	}
	return drops
}

// anotherProxy returns what another Service proxy has installed, or that this cannot be found out; "":
// nothing. available: there are programs of iptables.
func anotherProxy(ctx context.Context, available bool) string {
	if available {
		switch occupied, err := iptables.Occupied(ctx); {
		case err != nil:
			return "cannot check iptables for existing Service chains: " + err.Error()
		case occupied:
			return "iptables already has Service chains that nkp did not create (probably kube-proxy's); " +
				"--host-traffic nftables or iptables makes nkp take them over"
		}
	}
	if has, err := nftables.HasKubeProxyTables(); err == nil && has { // an error: there is no nf_tables
		return "nftables has kube-proxy's tables; --host-traffic nftables or iptables makes nkp take them " +
			"over"
	}
	return ""
}
