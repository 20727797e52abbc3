package k8s

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// warned collects what is wrong with one object, at most maxWarnings and one more.
type warned struct{ warnings []Warning }

func (o *warned) warn(path *field.Path, format string, args ...any) {
	if len(o.warnings) > maxWarnings {
		return
	}
	w := Warning{Field: path.String(), Text: fmt.Sprintf(format, args...)}
	if !slices.Contains(o.warnings, w) { // both families of a Service check the same field
		o.warnings = append(o.warnings, w)
	}
}

// prefixes reads a field with CIDRs.
func (o *warned) prefixes(path *field.Path, texts []string) (list []netip.Prefix) {
	for i, text := range texts {
		if p, ok := ParsePrefix(text); ok {
			list = append(list, p)
		} else {
			o.warn(path.Index(i), "%s is not a CIDR: ignored", brief.Quote(text))
		}
	}
	return list
}

// warningBook holds the warnings by the object they are about.
type warningBook struct {
	byRef map[Ref][]entry
	list  []Warning // all of them, sorted; handed out, never written to again; nil: out of date
}

// entry is a warning and the text that it is sorted by.
type entry struct {
	text string
	Warning
}

func newWarningBook() warningBook {
	return warningBook{byRef: map[Ref][]entry{}}
}

// maxWarnings bounds the warnings about one object.
const maxWarnings = 100

// set replaces the warnings about an object; it fills in object and origin.
func (b *warningBook) set(ref Ref, origin Origin, ws []Warning) {
	if len(ws) == 0 && len(b.byRef[ref]) == 0 {
		return
	}
	if len(ws) > maxWarnings {
		ws = append(slices.Clone(ws[:maxWarnings]), Warning{
			Text: fmt.Sprintf("has more problems: %d of them are named", maxWarnings),
		})
	}
	entries := make([]entry, 0, len(ws))
	for _, w := range ws {
		if ref != (Ref{}) {
			w.Ref, w.Object = ref, ref.String()
		}
		w.Where = origin.String()
		entries = append(entries, entry{w.String(), w})
	}
	if slices.Equal(b.byRef[ref], entries) {
		return
	}
	if len(entries) == 0 {
		delete(b.byRef, ref)
	} else {
		b.byRef[ref] = entries
	}
	b.list = nil
}

// move changes the origin in the warnings about an object.
func (b *warningBook) move(ref Ref, origin Origin) {
	before := b.byRef[ref]
	if len(before) == 0 {
		return
	}
	ws := make([]Warning, len(before))
	for i, e := range before {
		ws[i] = e.Warning
	}
	b.set(ref, origin, ws)
}

// flush returns all warnings, sorted by text.
func (b *warningBook) flush() []Warning {
	if b.list == nil {
		all := slices.Concat(slices.Collect(maps.Values(b.byRef))...)
		slices.SortFunc(all, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.text, b.text), a.Ref.Compare(b.Ref))
		})
		b.list = make([]Warning, len(all))
		for i := range all {
			b.list[i] = all[i].Warning
		}
	}
	return b.list
}
