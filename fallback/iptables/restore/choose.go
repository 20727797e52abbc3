//go:build linux

package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Choice is a back end and the reason for choosing it.
type Choice struct {
	Backend Backend
	Reason  string
}

// Choose returns the back end that the rest of the node uses, by the rules of kube-proxy's image: the one
// with kubelet's chains; else the one that already has chains of Services; else the one with more rules,
// nf_tables on a tie. want, if not empty, overrides this. The error wraps ErrBusy if the tables could not be
// read now.
func Choose(ctx context.Context, want Backend) (Choice, error) {
	c, err := installed(want)
	if err != nil || c.Backend != "" {
		return c, err
	}

	for _, mark := range []struct {
		table  string
		chains []string
		reason string
	}{
		{"mangle", []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}, "kubelet uses it"},
		{"nat", []string{"KUBE-SERVICES"}, "it has Service chains"},
	} {
		for _, b := range []Backend{NFT, Legacy} {
			if ok, err := has(ctx, b, mark.table, mark.chains...); err != nil {
				return Choice{}, err
			} else if ok {
				return Choice{b, mark.reason}, nil
			}
		}
	}

	nft, legacy := countRules(ctx, NFT), countRules(ctx, Legacy)
	if legacy > nft {
		return Choice{Legacy, fmt.Sprintf("it has more rules (%d, %s has %d)", legacy, NFT, nft)}, nil
	}
	return Choice{NFT, fmt.Sprintf("%s has no more rules (%d of %d)", Legacy, legacy, legacy+nft)}, nil
}

// Installed returns an error if the programs of a back end are not installed; "" stands for any back end.
func Installed(want Backend) error {
	_, err := installed(want)
	return err
}

// installed returns the back end that want or the installed programs determine; without Backend, both can be
// used.
func installed(want Backend) (Choice, error) {
	_, errNFT := find(NFT, k8s.IPv4)
	_, errLegacy := find(Legacy, k8s.IPv4)
	switch {
	case want == NFT && errNFT != nil:
		return Choice{}, fmt.Errorf("iptables back end %s: %w", want, errNFT)
	case want == Legacy && errLegacy != nil:
		return Choice{}, fmt.Errorf("iptables back end %s: %w", want, errLegacy)
	case want == NFT || want == Legacy:
		return Choice{want, "asked for"}, nil
	case want != "":
		return Choice{}, fmt.Errorf("unknown iptables back end %q: must be %s or %s", want, NFT, Legacy)
	case errNFT != nil && errLegacy != nil:
		return Choice{}, fmt.Errorf("iptables 1.8 or later is not installed; "+
			"install the package iptables: %w",
			errors.Join(errNFT, errLegacy))
	case errLegacy != nil:
		return Choice{NFT, "the only one installed"}, nil
	case errNFT != nil:
		return Choice{Legacy, "the only one installed"}, nil
	}
	return Choice{}, nil
}

var families = []k8s.Family{k8s.IPv4, k8s.IPv6}

// has reports whether a table of a back end has one of the chains, in any family. It takes no lock. A table
// that this process may not read, or that the kernel does not have, counts as empty. The error wraps ErrBusy
// if a table keeps changing while it is listed, or is the context's.
func has(ctx context.Context, b Backend, table string, chains ...string) (bool, error) {
	var busy error
	for _, f := range families {
		t, err := installedTables(b, f)
		if err != nil || !t.InUse(table) {
			continue
		}
		names, err := t.ChainNames(ctx, table)
		if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(chains, name) }) {
			return true, nil
		}
		if errors.Is(err, ErrBusy) || ctx.Err() != nil {
			busy = err
		}
	}
	return false, busy
}

// countRules counts the rules of a back end in both families. What takes longer than a few seconds is many.
func countRules(ctx context.Context, b Backend) (n int) {
	if b == NFT { // it may be unable to print them
		for _, f := range families {
			n += nftCount(f)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, f := range families {
		t, err := installedTables(b, f)
		if err != nil {
			continue
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, t.progs.save)
		cmd.Stdout, cmd.WaitDelay = &out, pipesLimit
		_ = cmd.Run() // what it printed before an error counts
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(l, "-") {
				n++
			}
		}
	}
	return n
}
