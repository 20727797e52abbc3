//go:build linux

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// Choice is a back end and why.
type Choice struct {
	Backend Backend
	Reason  string
}

// Choose picks the back end that the rest of the node uses, as the image of kube-proxy does: that in which kubelet left
// its mark; else that which holds chains of Services already; else that with more rules, nf_tables if there are as many.
// want, if not empty, is what to use whatever there is.
func Choose(ctx context.Context, want Backend) (Choice, error) {
	_, errNFT := find(NFT, iptables.ProtocolIPv4)
	_, errLegacy := find(Legacy, iptables.ProtocolIPv4)
	switch {
	case want == NFT && errNFT != nil:
		return Choice{}, fmt.Errorf("iptables back end %s: %w", want, errNFT)
	case want == Legacy && errLegacy != nil:
		return Choice{}, fmt.Errorf("iptables back end %s: %w", want, errLegacy)
	case want == NFT || want == Legacy:
		return Choice{want, "asked for"}, nil
	case want != "":
		return Choice{}, fmt.Errorf("iptables back end %q: there are %s and %s", want, NFT, Legacy)
	case errNFT != nil && errLegacy != nil:
		return Choice{}, fmt.Errorf("no iptables (1.8 or later) here, install the package iptables: %w", errors.Join(errNFT, errLegacy))
	case errLegacy != nil:
		return Choice{NFT, "the only one installed"}, nil
	case errNFT != nil:
		return Choice{Legacy, "the only one installed"}, nil
	}
	for _, b := range []Backend{NFT, Legacy} {
		if has(ctx, b, "mangle", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY") {
			return Choice{b, "kubelet uses it"}, nil
		}
	}
	for _, b := range []Backend{NFT, Legacy} {
		if has(ctx, b, "nat", "KUBE-SERVICES") {
			return Choice{b, "it holds chains of Services"}, nil
		}
	}
	nft, legacy := countRules(ctx, NFT), countRules(ctx, Legacy)
	if legacy > nft {
		return Choice{Legacy, fmt.Sprintf("it has more rules (%d, %s has %d)", legacy, NFT, nft)}, nil
	}
	return Choice{NFT, fmt.Sprintf("%s has no more rules (%d of %d)", Legacy, legacy, legacy+nft)}, nil
}

// inUse reports whether a table of a back end may hold anything. To look into a legacy table that was never used would
// make the kernel set it up.
func inUse(b Backend, p iptables.Protocol, table string) bool {
	if b == NFT {
		return true
	}
	file := "/proc/net/ip_tables_names"
	if p == iptables.ProtocolIPv6 {
		file = "/proc/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(names)), table)
}

var protocols = []iptables.Protocol{iptables.ProtocolIPv4, iptables.ProtocolIPv6}

// has reports whether a table of a back end has one of the chains, in any family.
func has(ctx context.Context, b Backend, table string, chains ...string) bool {
	for _, p := range protocols {
		progs, err := find(b, p)
		if err != nil || !inUse(b, p, table) {
			continue
		}
		for _, chain := range chains {
			// The number keeps the answer short, however many rules the chain has.
			if exec.CommandContext(ctx, progs.iptables, "-w", "5", "-t", table, "-S", chain, "1").Run() == nil {
				return true
			}
		}
	}
	return false
}

// countRules counts the rules of a back end in both families. What takes longer than a few seconds is many.
func countRules(ctx context.Context, b Backend) (n int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, p := range protocols {
		progs, err := find(b, p)
		if err != nil {
			continue
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, progs.save)
		cmd.Stdout = &out
		_ = cmd.Run() // what it printed before an error counts
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(l, "-") {
				n++
			}
		}
	}
	return n
}
