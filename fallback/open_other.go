//go:build !linux

package fallback

import (
	"context"
	"errors"

	nft "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

var errNotLinux = errors.New("iptables is supported on Linux only")

func (p *Plane) own(context.Context) (func(), error) { return func() {}, nil }

func (p *Plane) open(context.Context) ([]familyWorker, error) { return nil, errNotLinux }

// Diff returns the difference between installed and desired rules. It works on Linux only.
func Diff(context.Context, *k8s.Model, Options) (string, error) { return "", errNotLinux }

// Cleanup removes everything that a Plane installs. It works on Linux only.
func Cleanup(context.Context, CleanupOptions) (Removed, error) { return Removed{}, errNotLinux }

// Available returns an error: iptables is supported on Linux only.
func Available(string) error { return errNotLinux }

func countNFT(*k8s.Model, nft.Config, []k8s.Family, map[k8s.PortName]k8s.Counters, map[dataplane.DropKey]uint64) error {
	return errNotLinux
}

func diffNFT(*k8s.Model, Options) (string, error) { return "", errNotLinux }

func listRules(context.Context, string, k8s.Family) (lister, error) { return nil, errNotLinux }

// Occupied reports whether another proxy's rules are present. Without iptables there are none.
func Occupied(context.Context) (bool, error) { return false, nil }

// ReadRules returns the rules that are installed now. It works on Linux only.
func ReadRules(context.Context, string, k8s.Family) (map[string]map[string][]string, error) {
	return nil, errNotLinux
}

// FollowNFT follows a packet through nftables. It works on Linux only.
func FollowNFT(context.Context, k8s.Family, nft.Packet) ([]nft.Way, []string, error) {
	return nil, nil, errNotLinux
}

// LegacyRules returns nothing: there is no iptables.
func LegacyRules(context.Context, k8s.Family, ...string) (string, map[string]map[string][]string, error) {
	return "", nil, nil
}

// DiffService compares nkp's nftables for one Service port. It works on Linux only.
func DiffService(*k8s.Model, Options, k8s.Family, k8s.PortName) ([]string, error) {
	return nil, errNotLinux
}

// WhyNotNFTables returns that this system has no nftables.
func WhyNotNFTables(context.Context, Options) string { return errNotLinux.Error() }

// DropsBesideNFTables returns nothing: there is no iptables.
func DropsBesideNFTables(context.Context, Options) (string, error) { return "", nil }

// HasKubeProxyTables reports that there are none: there is no nftables.
func HasKubeProxyTables() (bool, error) { return false, nil }

// RemoveKubeProxyTables removes kube-proxy's nftables tables. It works on Linux only.
func RemoveKubeProxyTables() (int, error) { return 0, errNotLinux }

// CleanupNFTables removes nkp's tables. It works on Linux only.
func CleanupNFTables(context.Context, string) (int, error) { return 0, errNotLinux }
