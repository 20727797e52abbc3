package k8s

import (
	"cmp"
	"slices"
)

// warningBook holds the warnings by the object they are about and gives them as one sorted list, merging only
// what changed.
type warningBook struct {
	byRef   map[Ref][]entry
	changed map[Ref]struct{} // objects whose warnings in sorted are out of date
	sorted  []entry
	list    []Warning // sorted, without the texts; handed out, never written to again
}

// entry is a warning and the text that it is sorted by.
type entry struct {
	text string
	ref  Ref
	Warning
}

func newWarningBook() warningBook {
	return warningBook{byRef: map[Ref][]entry{}, changed: map[Ref]struct{}{}}
}

// set replaces the warnings about an object; it fills in object and origin.
func (b *warningBook) set(ref Ref, origin Origin, ws []Warning) {
	if len(ws) == 0 && len(b.byRef[ref]) == 0 {
		return
	}
	entries := make([]entry, 0, len(ws))
	for _, w := range ws {
		if ref != (Ref{}) {
			w.Ref, w.Object = ref, ref.String()
		}
		w.Where = origin.String()
		entries = append(entries, entry{w.String(), ref, w})
	}
	b.put(ref, entries)
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

func (b *warningBook) put(ref Ref, entries []entry) {
	if slices.Equal(b.byRef[ref], entries) {
		return
	}
	if len(entries) == 0 {
		delete(b.byRef, ref)
	} else {
		b.byRef[ref] = entries
	}
	b.changed[ref] = struct{}{}
}

// flush gives all warnings, sorted by text.
func (b *warningBook) flush() []Warning {
	if len(b.changed) == 0 {
		return b.list
	}
	var added []entry
	for ref := range b.changed {
		added = append(added, b.byRef[ref]...)
	}
	slices.SortFunc(added, compareEntries)
	merged := make([]entry, 0, len(b.sorted)+len(added))
	for _, e := range b.sorted {
		if _, stale := b.changed[e.ref]; stale {
			continue
		}
		for len(added) > 0 && compareEntries(added[0], e) < 0 {
			merged = append(merged, added[0])
			added = added[1:]
		}
		merged = append(merged, e)
	}
	b.sorted = append(merged, added...)
	b.list = make([]Warning, len(b.sorted))
	for i := range b.sorted {
		b.list[i] = b.sorted[i].Warning
	}
	clear(b.changed)
	return b.list
}

func compareEntries(a, b entry) int { return cmp.Or(cmp.Compare(a.text, b.text), a.ref.Compare(b.ref)) }
