//go:build linux

package restore

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// ChainNames returns the names of all chains of a table. With nf_tables it asks the kernel itself: iptables-nft-save takes
// minutes to sort a hundred thousand chains.
func (t *Tables) ChainNames(ctx context.Context, table string) ([]string, error) {
	if t.Backend == NFT {
		return nftChainNames(t.Family, table)
	}
	var names []string
	err := t.Save(ctx, table, func(chain, rule string) {
		if rule == "" {
			names = append(names, chain)
		}
	})
	return names, err
}

// Attributes of a chain: include/uapi/linux/netfilter/nf_tables.h, enum nft_chain_attributes.
const (
	nftaChainTable = 1
	nftaChainName  = 3
)

func nftChainNames(f k8s.Family, table string) ([]string, error) {
	family := uint8(unix.NFPROTO_IPV4)
	if f == k8s.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	var err error
	for range 5 { // other programs may change the tables while they are listed
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		var msgs [][]byte
		if msgs, err = req.Execute(unix.NETLINK_NETFILTER, 0); err == nil {
			return parseChainNames(msgs, table)
		} else if !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("list the chains of table %s: %w", table, err)
		}
	}
	return nil, fmt.Errorf("list the chains of table %s: %w: %w", table, ErrBusy, err)
}

func parseChainNames(msgs [][]byte, table string) ([]string, error) {
	var names []string
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("list the chains of table %s: %w", table, err)
		}
		var in, name string
		for _, a := range attrs {
			switch a.Attr.Type & nl.NLA_TYPE_MASK {
			case nftaChainTable:
				in = nl.BytesToString(a.Value)
			case nftaChainName:
				name = nl.BytesToString(a.Value)
			}
		}
		if in == table && name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}
