package fallback

import "github.com/nkp-proxy/nkp/fallback/rules"

// linkKey tells rules of shared chains apart by what they do.
type linkKey struct {
	table rules.Table
	chain string
	rule  string // without its comment
}

func keyOf(l rules.Link) linkKey { return linkKey{l.Table, l.Chain, l.Rule.Canonical()} }

// link is a rule of a shared chain.
type link struct {
	rules.Link      // as it is installed, comment included; if it is not, as it should be
	present    bool // it is installed
	owners     int  // items that call for it
}

// linkSet is what is known of the rules in shared chains.
type linkSet map[linkKey]*link

// found notes a rule that is installed.
func (s linkSet) found(l rules.Link) { s[keyOf(l)] = &link{Link: l, present: true} }

// delta counts how many owners each link gains or loses.
type delta map[linkKey]*linkDelta

type linkDelta struct {
	rules.Link
	n int
}

func (d delta) count(list []rules.Link, n int) {
	for _, l := range list {
		k := keyOf(l)
		if d[k] == nil {
			d[k] = &linkDelta{Link: l}
		}
		d[k].n += n
	}
}
