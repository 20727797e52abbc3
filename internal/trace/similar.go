package trace

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// maxSuggestions bounds the names in one message.
const maxSuggestions = 5

// DidYouMean returns a hint with the known names that are like name, the most similar first; "" if there are
// none. A known name of the form NAMESPACE/NAME is compared by its NAME. Known names may repeat.
func DidYouMean(name string, known []string) string {
	distance := map[string]int{}
	for _, k := range known {
		if _, done := distance[k]; done {
			continue
		}
		short := k[strings.LastIndex(k, "/")+1:]
		if a, b := strings.ToLower(name), strings.ToLower(short); isSimilar(a, b) {
			distance[k] = editDistance(a, b)
		}
	}
	names := slices.SortedFunc(maps.Keys(distance), func(a, b string) int {
		return cmp.Or(cmp.Compare(distance[a], distance[b]), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names[:min(len(names), maxSuggestions)], ", ") + "?"
}

// isSimilar reports whether one name contains the other, or two edits or fewer make them equal.
func isSimilar(a, b string) bool {
	if a != "" && (strings.Contains(a, b) || strings.Contains(b, a)) {
		return true
	}
	most := min(2, (len(b)+1)/2)
	return max(len(a)-len(b), len(b)-len(a)) <= most && editDistance(a, b) <= most
}

// editDistance returns the number of bytes to insert, delete or replace that turns a into b. Its time is the
// product of the lengths.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // edits from a[:i] to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			edits := before
			if a[i] != b[j] {
				edits = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], edits
		}
	}
	return row[len(b)]
}
