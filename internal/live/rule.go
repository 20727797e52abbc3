package live

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// rule is a rule of iptables as iptables-save prints it, without its chain: what it matches, and its target.
type rule struct {
	text    string
	matches []match
	target  string
	options []string // of the target
	comment string
}

// match is one condition of a rule.
type match struct {
	option string // "-s", "--dport", …
	value  string
	not    bool
}

// newRule takes the text of a rule apart.
func newRule(text string) rule {
	r := rule{text: text}
	not := false
	words := splitWords(text)

	for i := 0; i < len(words); i++ {
		w := words[i]
		value := func() string {
			if i+1 < len(words) {
				i++
				return words[i]
			}
			return ""
		}

		switch {
		case w == "!":
			not = true
			continue
		case w == "-j" || w == "-g":
			r.target = value()
			r.options = words[i+1:]
			return r
		case w == "--comment":
			r.comment = value()
		case w == "-m":
			value()
		case strings.HasPrefix(w, "-"):
			m := match{option: w, not: not}
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") && words[i+1] != "!" {
				m.value = value()
			}
			r.matches = append(r.matches, m)
		}

		not = false
	}
	return r
}

// splitWords splits at blanks, with double quotes and backslashes as iptables-save writes them.
func splitWords(s string) (words []string) {
	var b strings.Builder
	quoted, any := false, false

	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
			any = true
		case c == '"':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if any {
				words = append(words, b.String())
			}
			b.Reset()
			any = false
		default:
			b.WriteByte(c)
			any = true
		}
	}

	if any {
		words = append(words, b.String())
	}
	return words
}

// option returns the value of one of the target's options.
func (r *rule) option(name string) string {
	if i := slices.Index(r.options, name); i >= 0 && i+1 < len(r.options) {
		return r.options[i+1]
	}
	return ""
}

// truth is whether a rule matches, as far as that can be predicted.
type truth uint8

const (
	no truth = iota
	yes
	maybe // by chance, or by what the client did before
)

// holds reports whether a rule matches a packet. A condition that nkp does not understand does not match.
func (r *rule) holds(p *walker, marked bool) truth {
	result := yes
	for i := range r.matches {
		m := &r.matches[i]
		switch t := m.holds(p, marked); {
		case t == maybe:
			result = maybe
		case (t == yes) == m.not:
			return no
		}
	}
	return result
}

func (m *match) holds(p *walker, marked bool) truth {
	is := func(b bool) truth {
		if b {
			return yes
		}
		return no
	}

	switch m.option {
	case "-s":
		return is(inPrefix(m.value, p.src))
	case "-d":
		return is(inPrefix(m.value, p.dst.Addr()))
	case "-p":
		return is(strings.EqualFold(m.value, string(p.protocol)))
	case "--dport":
		n, err := strconv.ParseUint(m.value, 10, 16)
		return is(err == nil && uint16(n) == p.dst.Port())
	case "-i":
		prefix, wild := strings.CutSuffix(m.value, "+")
		return is(p.device == m.value || wild && p.device != "" && strings.HasPrefix(p.device, prefix))
	case "--dst-type":
		return is(m.value == "LOCAL" && p.isLocal(p.dst.Addr()))
	case "--src-type":
		return is(m.value == "LOCAL" && p.isLocal(p.src))
	case "--ctstate":
		return is(slices.Contains(strings.Split(m.value, ","), "NEW"))
	case "--mark":
		value, _, _ := strings.Cut(m.value, "/")
		return is(marked == (value != "0x0" && value != "0"))
	case "--mode", "--probability",
		"--rcheck", "--set", "--seconds", "--reap", "--name", "--mask", "--rsource":
		if m.option == "--mode" || m.option == "--rcheck" {
			return maybe
		}
		return is(!m.not) // details of a match by chance or history
	}
	return is(m.not) // not understood: the rule does not match
}

// network returns the value of -s or -d. ok is false for a mask that is no prefix length.
func network(text string) (p netip.Prefix, ok bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p, err == nil
}

func inPrefix(text string, ip netip.Addr) bool {
	p, ok := network(text)
	return ok && p.Contains(ip)
}
