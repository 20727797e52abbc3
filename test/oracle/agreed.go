package oracle

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Agreed has a line for each case from seed 1 on: the Digest of nkp's answers on which kube-proxy agreed.
// TestDifferential of test/k8s/differential writes it with -update, and otherwise compares it.
//
//go:embed testdata/agreed
var Agreed string

// AgreedCases is how many cases are recorded.
const AgreedCases = 4000

// A Digest collects answers. The zero value has none.
type Digest struct{ text []byte }

// Add adds everything that was answered at one moment.
func (d *Digest) Add(facts Facts) {
	lines := make([]string, 0, len(facts))
	for fact, answer := range facts {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s\n", fact.Port.ID(), fact.What, fact.At, answer))
	}
	slices.Sort(lines)
	d.text = append(d.text, strings.Join(lines, "")+"\n"...)
}

// String returns the answers' hash, 12 hexadecimal digits.
func (d *Digest) String() string {
	sum := sha256.Sum256(d.text)
	return hex.EncodeToString(sum[:6])
}

// Text returns the answers, sorted, with an empty line after each moment.
func (d *Digest) Text() string { return string(d.text) }

// Answers replays the case and returns nkp's answers. It fails if the changes that the tracker reported do not lead to its model.
func (c Case) Answers() (*Digest, error) {
	n, digest := NewNkp(), &Digest{}
	for _, e := range c.Events {
		switch {
		case e.Asks():
			if err := n.Sync(); err != nil {
				return digest, err
			}
			digest.Add(n.Facts())
		case e.Object == nil:
			n.Apply(e.Gone, nil)
		default:
			n.Apply(e.Ref(), stored(e.Object))
		}
	}
	return digest, nil
}
