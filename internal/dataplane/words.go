package dataplane

import (
	"fmt"
	"strings"
	"time"
)

// Repair describes a repair: a data plane found that another program had changed what nkp installed.
type Repair struct {
	At   time.Time `json:"time"`
	What string    `json:"what"`
}

// Count returns a number with its noun, in the plural unless it is 1.
func Count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Some returns the first names, at most so many, joined by commas, and the number of the others.
func Some(most int, names []string) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
