package k8s

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// AnnotationWeights is an annotation of a Service: a list of ADDRESS=WEIGHT or CIDR=WEIGHT, separated by
// commas. It sets which share of the new connections its endpoints get. The longest prefix decides; endpoints
// that are not listed have weight 1.
const AnnotationWeights = "nkp-proxy.github.io/weights"

// MaxWeight is the largest weight of an endpoint. Weights of less than a slot are rounded up
// (docs/decisions/weights.md).
const MaxWeight = 100

// maxWeights bounds the entries of the annotation.
const maxWeights = 4096

// weights are those of a Service's endpoints by prefix.
type weights struct {
	of      map[netip.Prefix]uint8
	lengths []int // of the prefixes, the longest first
}

// at returns the weight of the endpoints at an address.
func (w *weights) at(a netip.Addr) uint8 {
	if w == nil {
		return 1
	}
	for _, n := range w.lengths {
		if p, err := a.Prefix(n); err == nil {
			if weight, ok := w.of[p]; ok {
				return weight
			}
		}
	}
	return 1
}

// readWeights reads AnnotationWeights; it returns nil if all weights are 1. Entries that are not valid are
// ignored with a warning.
func (d *serviceDef) readWeights(o *v1.Service, opts *Options) *weights {
	text := o.Annotations[AnnotationWeights]
	if strings.TrimSpace(text) == "" {
		return nil
	}

	path := field.NewPath("metadata", "annotations").Key(AnnotationWeights)
	w := &weights{of: map[netip.Prefix]uint8{}}
	shares := false  // weights that matter beside 0
	var bad []string // the first entry that is not valid, and another one if there are more
	twice := ""

	for entry := range strings.SplitSeq(text, ",") {
		if len(w.of) == maxWeights {
			d.warn(path, "has more than %d entries: the rest is ignored", maxWeights)
			break
		}
		where, number, _ := strings.Cut(strings.TrimSpace(entry), "=")
		weight, err := strconv.ParseUint(number, 10, 8)
		p, ok := parseRange(where)
		if !ok || err != nil || weight > MaxWeight {
			bad = append(bad[:min(len(bad), 1)], strings.TrimSpace(entry))
			continue
		}

		if before, given := w.of[p]; given {
			if before != uint8(weight) {
				twice = where
			}
			continue
		}

		w.of[p] = uint8(weight)
		shares = shares || weight > 1
		if !slices.Contains(w.lengths, p.Bits()) {
			w.lengths = append(w.lengths, p.Bits())
		}
	}

	slices.SortFunc(w.lengths, func(a, b int) int { return cmp.Compare(b, a) })
	if len(bad) > 0 {
		others := ""
		if len(bad) > 1 {
			others = ", and so are others"
		}
		d.warn(path, "%s is not ADDRESS=WEIGHT or CIDR=WEIGHT with a weight of 0 to %d: ignored%s",
			brief.Quote(bad[0]), MaxWeight, others)
	}
	if twice != "" {
		d.warn(path, "%s has several weights: the first counts", twice)
	}
	switch {
	case shares && affinitySeconds(o) > 0:
		d.warn(path, "has no effect with session affinity, but for weight 0")
	case shares && opts.NotWeighing != "":
		d.warn(path, "has no effect, but for weight 0: %s", opts.NotWeighing)
	}
	return w
}

// Shares returns how many slots of a table each of the endpoints with these weights gets, in proportion to
// its weight. That is exact if it takes no more than most slots. If it takes more, all endpoints of one
// weight together get their part of most slots to within one slot. Each endpoint gets a slot at least, by
// which the table may exceed most.
func Shares(weights []int, most int) []int {
	divisor, total := 0, 0
	for _, w := range weights {
		divisor = gcd(divisor, w)
		total += w
	}

	shares := make([]int, len(weights))
	if len(weights) == 0 || total/divisor <= most {
		for i, w := range weights {
			shares[i] = w / divisor
		}
		return shares
	}

	var rest [MaxWeight + 1]int // of a slot, in parts of total, by weight
	for i, w := range weights {
		rest[w] += w * most
		shares[i] = max(1, rest[w]/total)
		rest[w] -= shares[i] * total
	}
	return shares
}

// parseRange parses an address or a CIDR.
func parseRange(text string) (netip.Prefix, bool) {
	if a, ok := ParseAddr(text); ok {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return ParsePrefix(text)
}
