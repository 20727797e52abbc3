package rules

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// Rule is a rule without its chain, as iptables-save prints it: addresses, devices and protocol first, then
// the matches in their order, then the target.
type Rule string

// Canonical returns the rule without its comment: what it does.
func (r Rule) Canonical() string {
	s := string(r)
	const option = "-m comment --comment "
	i := strings.Index(s, option)
	if i < 0 {
		return s
	}
	rest := s[i+len(option):]
	end := strings.IndexByte(rest, ' ')
	if strings.HasPrefix(rest, `"`) {
		end = quotedEnd(rest)
	}
	if end < 0 {
		end = len(rest)
	}
	return strings.TrimSuffix(s[:i]+strings.TrimPrefix(rest[end:], " "), " ")
}

// quotedEnd returns the index after the closing quote of a text that begins with one; -1 if there is none.
func quotedEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// Target returns where the rule jumps to; "" if nowhere.
func (r Rule) Target() string {
	s := r.Canonical()
	i := strings.LastIndex(" "+s, " -j ")
	if i < 0 {
		return ""
	}
	target, _, _ := strings.Cut(s[i+3:], " ")
	return target
}

// line builds a rule: its parts in the order of iptables-save.
type line struct{ b strings.Builder }

func (l *line) add(words ...string) *line {
	for _, w := range words {
		if l.b.Len() > 0 {
			l.b.WriteByte(' ')
		}
		l.b.WriteString(w)
	}
	return l
}

func (l *line) from(p netip.Prefix) *line { return l.add("-s", p.String()) }
func (l *line) to(a netip.Addr) *line     { return l.add("-d", host(a)) }
func (l *line) proto(p string) *line      { return l.add("-p", p) }

// comment adds a comment; the texts here hold neither quotes nor backslashes.
func (l *line) comment(format string, args ...any) *line {
	return l.add("-m", "comment", "--comment", `"`+fmt.Sprintf(format, args...)+`"`)
}

// port matches the destination port; proto must have come before.
func (l *line) port(proto string, port uint16) *line {
	return l.add("-m", proto, "--dport", strconv.Itoa(int(port)))
}

func (l *line) local(which string) *line { return l.add("-m", "addrtype", "--"+which+"-type", "LOCAL") }

func (l *line) jump(target string, options ...string) Rule {
	return Rule(l.add("-j", target).add(options...).b.String())
}

// none ends a rule without a target.
func (l *line) none() Rule { return Rule(l.b.String()) }

func rule() *line { return &line{} }

func host(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// probability returns part/whole as iptables-save prints it: the kernel keeps 31 bits of it (xt_statistic).
func probability(part, whole int) string {
	const unit = 1 << 31
	return strconv.FormatFloat(math.Round(unit*float64(part)/float64(whole))/unit, 'f', 11, 64)
}
