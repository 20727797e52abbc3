//go:build linux

package netlink

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Probe returns a *LacksError for the first of the features that the kernel lacks, for a family. Other errors
// say nothing about the features. It changes nothing.
func (c *Conn) Probe(f k8s.Family, features []rules.Feature) error {
	b := NewBatch(f)
	b.table = rules.TableName + "-probe"
	b.AddTable()
	for i, x := range features {
		b.Tag(i)
		for k := range x.Sets {
			b.AddSet(&x.Sets[k])
		}
		if x.Flowtable {
			b.AddFlowtable()
		}
		for k := range x.Chains {
			b.AddChain(&x.Chains[k])
			b.AddRules(&x.Chains[k])
		}
	}

	err := c.Check(b)
	refusal := new(RefusedError)
	switch {
	case !errors.As(err, &refusal):
		return err
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("nf_tables: %w: it takes the capability NET_ADMIN", unix.EPERM)
	case refusal.Tags[NoTag] != nil:
		return fmt.Errorf("no nf_tables for %s: %w", f, refusal.Tags[NoTag])
	}

	first := slices.Min(slices.Collect(maps.Keys(refusal.Tags)))
	return &LacksError{f, features[first], refusal.Tags[first]}
}

// LacksError is returned when the kernel refuses a feature.
type LacksError struct {
	Family  k8s.Family
	Feature rules.Feature
	Reason  error // the kernel's
}

func (e *LacksError) Error() string {
	return fmt.Sprintf("nf_tables for %s lacks %s, which is in Linux since %s: %v",
		e.Family, e.Feature.Name, e.Feature.Since, e.Reason)
}

func (e *LacksError) Unwrap() error { return e.Reason }
