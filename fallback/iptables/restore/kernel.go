//go:build linux

package restore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	mathbits "math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// iptables-nft cannot list a chain with a native nft rule, nor a table with such a chain, although it can
// modify them. So nkp reads such chains from nf_tables by netlink. This file writes nothing.

// nftChain is a chain of a table that iptables-nft uses.
type nftChain struct {
	name  string
	drops bool // its policy; only a base chain has one
}

// nftRule is a rule as the kernel has it: its expressions by name, with their attributes.
type nftRule []nftExpression

type nftExpression struct {
	name string
	data []byte
}

// nftChains returns the chains of a table.
func nftChains(f k8s.Family, table string) (list []nftChain, err error) {
	what := "the chains of table " + table
	err = nftDump(f, unix.NFT_MSG_GETCHAIN, what, nil, func() { list = nil }, func(attrs map[uint16][]byte) {
		if text(attrs[unix.NFTA_CHAIN_TABLE]) == table {
			policy := attrs[unix.NFTA_CHAIN_POLICY]
			list = append(list, nftChain{
				text(attrs[unix.NFTA_CHAIN_NAME]),
				len(policy) == 4 && binary.BigEndian.Uint32(policy) == policyDrop,
			})
		}
	})
	return list, err
}

const policyDrop = 0 // NF_DROP

// nftRules returns the rules of a chain; none if it does not exist.
func nftRules(f k8s.Family, table, chain string) (list []nftRule, err error) {
	what := fmt.Sprintf("chain %s of table %s", chain, table)
	within := []*nl.RtAttr{
		nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(table)),
		nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(chain)),
	}
	err = nftDump(f, unix.NFT_MSG_GETRULE, what, within, func() { list = nil },
		func(attrs map[uint16][]byte) {
			if text(attrs[unix.NFTA_RULE_TABLE]) != table || text(attrs[unix.NFTA_RULE_CHAIN]) != chain {
				return // of a kernel that lists the rules of all chains
			}
			var r nftRule
			items, _ := nl.ParseRouteAttr(attrs[unix.NFTA_RULE_EXPRESSIONS]) // the kernel's own
			for _, item := range items {
				e := attributes(item.Value)
				r = append(r, nftExpression{text(e[unix.NFTA_EXPR_NAME]), e[unix.NFTA_EXPR_DATA]})
			}
			list = append(list, r)
		})
	return list, err
}

// nftCount returns the number of rules in the tables of iptables; those that cannot be listed do not count.
func nftCount(f k8s.Family) (n int) {
	_ = nftDump(f, unix.NFT_MSG_GETRULE, "rules", nil, func() { n = 0 }, func(attrs map[uint16][]byte) {
		if slices.Contains(tableNames, text(attrs[unix.NFTA_RULE_TABLE])) {
			n++
		}
	})
	return n
}

// dumpTries bounds the dumps of one kind: other programs may change the tables while they are listed.
const dumpTries = 5

// nftDump lists objects of nf_tables, and calls each with the attributes of each one. It calls retry before
// it lists them again.
func nftDump(
	f k8s.Family, kind int, what string, within []*nl.RtAttr,
	retry func(), each func(map[uint16][]byte),
) error {
	var err error
	for range dumpTries {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: nfproto(f), Version: nl.NFNETLINK_V0})
		for _, a := range within {
			req.AddData(a)
		}
		var msgs [][]byte
		switch msgs, err = req.Execute(unix.NETLINK_NETFILTER, 0); {
		case err == nil:
			retry()
			for _, m := range msgs {
				each(attributes(m[min(len(m), nl.SizeofNfgenmsg):]))
			}
			return nil
		case errors.Is(err, unix.ENOENT): // there is no such table or chain
			return nil
		case !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("list %s: %w", what, err)
		}
	}
	return fmt.Errorf("list %s: %w: %w", what, ErrBusy, err)
}

func nfproto(f k8s.Family) uint8 {
	if f == k8s.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// attributes returns netlink attributes by their types.
func attributes(b []byte) map[uint16][]byte {
	all := map[uint16][]byte{}
	list, _ := nl.ParseRouteAttr(b) // the kernel's own
	for _, a := range list {
		all[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return all
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// kernelRules returns the rules of a chain as Rules does. It does not read kube-proxy's and nkp's own chains
// (KUBE-…), which are written anew where iptables-nft cannot list them: ok is false for them.
func (t *Tables) kernelRules(table, chain string) (list []string, ok bool, err error) {
	const localFirewall = "KUBE-FIREWALL" // kubelet's
	if strings.HasPrefix(chain, "KUBE-") && chain != localFirewall {
		return nil, false, nil
	}
	chains, err := nftChains(t.Family, table)
	if err != nil || !slices.ContainsFunc(chains, func(c nftChain) bool { return c.name == chain }) {
		return nil, false, err
	}
	rules, err := nftRules(t.Family, table, chain)
	for _, r := range rules {
		list = append(list, r.text(t.Family))
	}
	return list, err == nil, err
}

// text returns the rule as iptables prints it, without "-A CHAIN". It can print what nkp and kube-proxy use
// in the base chains, their jumps to the Services' chains. Every other expression is marked as unprintable.
func (r nftRule) text(f k8s.Family) string {
	var w, load []string // load is the option that a comparison ends
	var mask []byte
	add := func(words ...string) { w = append(w, words...) }

	for _, e := range r {
		get := func(x expr.Any) bool { return expr.Unmarshal(nfproto(f), e.data, x) == nil }
		var match expr.Match
		var meta expr.Meta
		var payload expr.Payload
		var bitwise expr.Bitwise
		var compare expr.Cmp
		var verdict expr.Verdict
		var target expr.Target

		was := load
		load = nil
		switch {
		case e.name == "counter" || e.name == "log" || e.name == "last":
		case e.name == "match" && get(&match):
			add(matchText(&match)...)
		case e.name == "meta" && get(&meta) && meta.Key == expr.MetaKeyIIFNAME:
			load = []string{"-i"}
		case e.name == "payload" && get(&payload) && payload.Base == expr.PayloadBaseNetworkHeader &&
			addressOption(f, payload.Offset) != "":
			load, mask = []string{addressOption(f, payload.Offset)}, nil
		case e.name == "bitwise" && was != nil && get(&bitwise):
			load, mask = was, bitwise.Mask
		case e.name == "cmp" && was != nil && get(&compare):
			if compare.Op == expr.CmpOpNeq {
				add("!")
			}
			add(was[0], comparedTo(f, was[0], mask, compare.Data))
		case e.name == "immediate" && get(&verdict):
			add(verdictText(&verdict)...)
		case e.name == "reject":
			add("-j", "REJECT")
		case e.name == "target" && get(&target):
			add("-j", target.Name)
		default:
			add("-m", unprintable+e.name)
		}
	}
	return strings.Join(w, " ")
}

// escape writes a comment between quotes, as iptables-save does.
var escape = strings.NewReplacer(`"`, `\"`, `'`, `\'`, `\`, `\\`)

// matchText returns a match of iptables as its options.
func matchText(m *expr.Match) []string {
	switch i := m.Info.(type) {
	case *xt.Comment:
		return []string{"-m", "comment", "--comment", `"` + escape.Replace(string(*i)) + `"`}
	case *xt.AddrTypeV1:
		if i.Source == 0 && i.Dest == uint16(xt.AddrTypeLocal) && i.Flags == 0 {
			return []string{"-m", "addrtype", "--dst-type", "LOCAL"}
		}
	case *xt.ConntrackMtinfo3:
		if i.MatchFlags == uint16(xt.ConntrackState) {
			list := []string{"-m", "conntrack"}
			if i.InvertFlags != 0 {
				list = append(list, "!")
			}
			return append(list, "--ctstate", statesText(i.StateMask))
		}
	}
	return []string{"-m", unprintable + m.Name}
}

// statesText returns the states of connections in a mask (Linux: xt_conntrack.h, XT_CONNTRACK_STATE_BIT).
func statesText(mask uint16) string {
	var list []string
	for _, s := range []struct { // in the order of iptables-save
		bit  uint16
		name string
	}{
		{1 << 0, "INVALID"}, {1 << 3, "NEW"}, {1 << 2, "RELATED"}, {1 << 1, "ESTABLISHED"},
		{1 << 8, "UNTRACKED"}, {1 << 6, "SNAT"}, {1 << 7, "DNAT"},
	} {
		if mask&s.bit != 0 {
			list = append(list, s.name)
		}
	}
	return strings.Join(list, ",")
}

// addressOption returns the option that compares the address at an offset of the header.
func addressOption(f k8s.Family, at uint32) string {
	if f == k8s.IPv6 {
		return map[uint32]string{8: "-s", 24: "-d"}[at]
	}
	return map[uint32]string{12: "-s", 16: "-d"}[at]
}

// comparedTo returns the value of an option: a device, with + at the end of the beginning of its name, or an
// address with its prefix. Of an address whose mask is whole bytes, only these are compared.
func comparedTo(f k8s.Family, option string, mask, data []byte) string {
	if option == "-i" {
		if bytes.HasSuffix(data, []byte{0}) {
			return text(data)
		}
		return string(data) + "+"
	}
	bits, length := 8*len(data), 4
	if f == k8s.IPv6 {
		length = 16
	}
	if mask != nil {
		bits = 0
		for _, b := range mask {
			bits += mathbits.OnesCount8(b)
		}
	}
	whole := make([]byte, length)
	copy(whole, data)
	a, _ := netip.AddrFromSlice(whole)
	return netip.PrefixFrom(a, bits).String()
}

func verdictText(v *expr.Verdict) []string {
	switch v.Kind {
	case expr.VerdictJump:
		return []string{"-j", v.Chain}
	case expr.VerdictGoto:
		return []string{"-g", v.Chain}
	case expr.VerdictDrop:
		return []string{"-j", "DROP"}
	case expr.VerdictAccept:
		return []string{"-j", "ACCEPT"}
	case expr.VerdictReturn:
		return []string{"-j", "RETURN"}
	}
	return []string{"-j", unprintable + "verdict"}
}
